#: {"status": "error"}
numbers = [1, 2, 3]

print("before")
print(numbers[1] + numbers[5])

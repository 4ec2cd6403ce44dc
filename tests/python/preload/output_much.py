for number in range(200_000):
    print(number, "some more text to fill the line")

#: {"stdin": "w\nn\np x\nc\n"}
def f():
    x = 5
    breakpoint()
    x = 6
    return x


print(f())

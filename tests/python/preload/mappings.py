#: {"ways": ["bare"]}
files = set()
for line in open("/pro\x63/self/maps"):
    fields = line.split(maxsplit=5)
    if len(fields) == 6:
        files.add((fields[5].strip(), fields[1]))
print(*sorted(files), sep="\n")

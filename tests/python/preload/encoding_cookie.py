# -*- coding: latin-1 -*-
print("ü", len("ü"), repr("ü"))

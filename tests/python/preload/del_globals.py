class Thing:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name, helper("x"), SETTING, type(later).__name__)


def helper(text):
    return text + text


SETTING = "a setting"
_private = Thing("private")
public = Thing("public")
listed = [Thing("first"), Thing("second")]
kept_by_function = (lambda default=Thing("default"): default)
later = Thing("later")
print("end")

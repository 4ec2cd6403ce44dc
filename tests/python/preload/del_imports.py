class Thing:
    def __del__(self):
        try:
            import decimal

            print("imported", decimal.Decimal(1))
        except ImportError as error:
            print(type(error), error)


def function():
    pass


thing = Thing()

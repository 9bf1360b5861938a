"""Functions that jobs of the tests run: a worker imports them by their names."""


def square(number):
    print("squaring", number)
    return number * number


def fail():
    raise ValueError("no such luck")

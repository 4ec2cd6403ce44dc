#: {"status": "error", "hide": ["in \\d+\\.\\d+s"]}
import unittest


class Tests(unittest.TestCase):
    def test_good(self):
        self.assertEqual(1, 1)

    def test_bad(self):
        self.assertEqual([1, 2], [1, 3])

    def test_error(self):
        open("no such file")

    @unittest.skip("not now")
    def test_skipped(self):
        pass


unittest.main(verbosity=2)

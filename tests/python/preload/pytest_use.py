#: {"status": "error", "hide": ["in \\d+\\.\\d+s"], "files": {"test_it.py": "import pytest\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n, tmp_path, monkeypatch):\n    monkeypatch.setenv('A', 'b')\n    assert n == 1\n"}}
import sys

import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider"]))

#: {"status": "error"}
import numpi

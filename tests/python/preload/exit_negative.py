#: {"status": "error"}
raise SystemExit(-2)

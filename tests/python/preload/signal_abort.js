//: {"status": "error", "hide": ["(?s)----- Native stack trace.*"]}
process.abort();

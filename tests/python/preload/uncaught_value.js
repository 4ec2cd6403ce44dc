//: {"status": "error"}
throw { not: 'an error', nested: [1, 2] };

//: {"status": "error"}
const x = require('lodahs');

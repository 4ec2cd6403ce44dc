//: {"env": {"COLOUR": "red", "NODE_OPTIONS": "--no-deprecation --stack-trace-limit=3", "TZ": "Europe/Berlin"}, "preloaded": false}
console.log(process.env.COLOUR, process.noDeprecation, Error.stackTraceLimit, new Date(0).toString(), process.execArgv);

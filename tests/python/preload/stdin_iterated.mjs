//: {"stdin": "a\nb\n", "preloaded": false}
for await (const chunk of process.stdin) console.log(String(chunk));

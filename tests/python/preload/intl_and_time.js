console.log(new Date(0).toString(), new Date(2024, 6, 1).toLocaleString(), Intl.DateTimeFormat().resolvedOptions());
console.log((1234567.891).toLocaleString('de-DE'), new Intl.PluralRules('ar').select(3), 'ä'.localeCompare('z', 'sv'));
process.env.TZ = 'Asia/Tokyo';
console.log(new Date(0).toString(), Intl.DateTimeFormat().resolvedOptions().timeZone, new Date().getTimezoneOffset());

//! Sends the server anything that the agent of a session could send, in pieces of any size. No call hears more than it has given credit
//! for, or anything after its end.

#![no_main]

use isolator_pool::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(([cut, credit], said)) = input.split_first_chunk() else { return };
    let cut = if *cut == 0 { said.len() } else { usize::from(*cut) };
    let credit = u32::from(*credit) * 100;
    for heard in fuzzing::heard_of_agent(said, cut, credit) {
        assert!(heard.used <= u64::from(credit), "{heard:?}");
        assert!(heard.is_stream || heard.used == 0, "{heard:?}");
        assert!(heard.answers <= 1 && heard.ends <= 1, "{heard:?}");
        assert!(!heard.goes_on_after_the_end, "{heard:?}");
    }
});

//! The advice itself: what sizes pools should have for the calls that were seen, and why.

use isolator_pool::pool::sizing::{Ask, Depths, LeadTime, Size, fit};
use serde::Serialize;

/// Fewer calls say little: then advice is a guess, which is not written.
const FEW_CALLS: u64 = 100;

/// Observations of the calls of a language.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) language: String,
    /// The calls by how many of its sandboxes were being made when they came.
    pub(super) depths: Depths,
    /// The most calls in a minute.
    pub(super) busiest_minute: u64,
    /// How long it takes to replace a sandbox, if any was made ahead.
    pub(super) lead: Option<LeadTime>,
    /// Bytes for each sandbox that waits, and whether they were measured.
    pub(super) each: u64,
    pub(super) is_measured: bool,
    /// Its size now.
    pub(super) now: Size,
}

/// The aim of the advice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Aim {
    /// The share of calls that should find a sandbox ready.
    pub(super) target: f64,
    /// Bytes that all pools may take.
    pub(super) memory: Option<u64>,
    /// Sandboxes that are made at the same time.
    pub(super) refills: usize,
}

/// The advice for a language.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) language: String,
    pub(super) calls: u64,
    pub(super) busiest_minute: u64,
    /// How long replacing a sandbox takes, if that is known.
    pub(super) lead_ms: Option<f64>,
    pub(super) sandbox_bytes: u64,
    /// Whether that was measured.
    pub(super) is_measured: bool,
    /// The value in the configuration.
    pub(super) now: Now,
    /// The value that it should have.
    pub(super) size: usize,
    /// The share of the calls that would have found a sandbox ready, with the size as it is and as it should be.
    pub(super) warm_now: Option<f64>,
    pub(super) warm: Option<f64>,
    pub(super) bytes_now: u64,
    pub(super) bytes: u64,
    /// Whether it is little more than a guess.
    pub(super) is_guess: bool,
    /// The reason.
    pub(super) reason: String,
    /// Further remarks.
    pub(super) notes: Vec<String>,
    #[serde(skip)]
    pub(super) depths: Depths,
}

/// A size in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Now {
    Fixed(usize),
    Adaptive { min: usize, max: usize },
}

impl Now {
    fn of(size: Size) -> Self {
        match size {
            Size::Fixed(size) => Self::Fixed(size),
            Size::Adaptive { min, max, .. } => Self::Adaptive { min, max },
        }
    }
}

/// The advice for all languages that were seen.
pub(super) fn advise(seen: &[Seen], aim: Aim) -> Vec<Advice> {
    let ask = |of: &'_ Seen| match of.depths.total() > 0.0 {
        true => (1, of.depths.size_for(aim.target)),
        // Nothing is known of a language without calls, so it keeps what it has.
        false => (of.now.least(), of.now.least()),
    };
    let mut asks = Vec::with_capacity(seen.len());
    for of in seen {
        let (min, wanted) = ask(of);
        asks.push(Ask { min, wanted, each: of.each, depths: &of.depths });
    }
    let sizes = fit(&asks, aim.memory);
    let all = seen.iter().zip(sizes).zip(&asks);
    all.map(|((of, size), ask)| one(of, size, ask.wanted, aim)).collect()
}

fn one(of: &Seen, size: usize, wanted: usize, aim: Aim) -> Advice {
    let calls = of.depths.total() as u64;
    let lead = of.lead.map(|lead| lead.delay + lead.making);
    // An adaptive pool has found its size, which depends on the time of the day.
    let as_now = match of.now {
        Size::Fixed(size) => Some(size),
        Size::Adaptive { .. } => None,
    };
    let warm_now = as_now.and_then(|size| of.depths.share(size));
    let warm = of.depths.share(size);
    let bytes = |size: usize| of.each.saturating_mul(size as u64);
    let mut notes = Vec::new();
    let is_few = calls > 0 && calls < FEW_CALLS;
    if is_few {
        notes.push(format!(
            "only {calls} calls were seen, so this is little more than a guess: it takes {FEW_CALLS}"
        ));
    }
    let is_untimed = calls > 0 && of.lead.is_none();
    if is_untimed {
        notes.push(
            "no sandbox was made ahead yet, so how long one takes is a guess, and so is this: set a size of 1 first"
                .to_owned(),
        );
    }
    let making = of.lead.unwrap_or_default().making;
    let makes = aim.refills as f64 / making.as_secs_f64().max(0.001);
    let rate = of.busiest_minute as f64 / 60.0;
    if rate > makes {
        notes.push(format!(
            "in the busiest minute, more calls came than sandboxes are made ({makes:.1} a second), so no size is \
             enough then; see requests.refills"
        ));
    }
    if size < wanted {
        let (share, memory) = (percent(of.depths.share(wanted)), mib(bytes(wanted)));
        notes.push(format!(
            "without the bound of memory it would be {wanted}, for {share} and {memory}"
        ));
    }
    if calls > 0 && !of.is_measured {
        notes.push("the memory is an estimate, because it could not be measured".to_owned());
    }
    let reason = match (calls, of.now) {
        (0, _) => format!("no calls were seen, so {} is left", shown(of.now)),
        (_, now) => {
            let were = match now {
                Size::Fixed(now) if now == size => "as it is now".to_owned(),
                Size::Fixed(now) => {
                    format!("now {now}: {} and {}", percent(warm_now), mib(bytes(now)))
                }
                Size::Adaptive { min, max, .. } => {
                    format!("now {min} to {max}, which follows the calls by itself")
                }
            };
            let verb = if size == 1 { ("keeps", "takes") } else { ("keep", "take") };
            let takes = lead.map_or_else(String::new, |lead| {
                format!(", a sandbox takes {:.0} ms", lead.as_secs_f64() * 1e3)
            });
            format!(
                "{} in the busiest minute{takes}: {size} {} {} of calls warm and {} {} ({were})",
                pace(of.busiest_minute),
                verb.0,
                percent(warm),
                verb.1,
                mib(bytes(size)),
            )
        }
    };
    Advice {
        language: of.language.clone(),
        calls,
        busiest_minute: of.busiest_minute,
        lead_ms: lead.map(|lead| (lead.as_secs_f64() * 1e4).round() / 10.0),
        sandbox_bytes: of.each,
        is_measured: of.is_measured,
        now: Now::of(of.now),
        size,
        warm_now,
        warm,
        bytes_now: bytes(as_now.unwrap_or(size)),
        bytes: bytes(size),
        is_guess: is_few || is_untimed,
        reason,
        notes,
        depths: of.depths.clone(),
    }
}

fn shown(size: Size) -> String {
    match size {
        Size::Fixed(size) => size.to_string(),
        Size::Adaptive { min, max, .. } => format!("{min} to {max}"),
    }
}

/// Calls of a minute, so that rare ones are not `0.0 a second`.
fn pace(minute: u64) -> String {
    match minute {
        1 => "1 call".to_owned(),
        2..=29 => format!("{minute} calls"),
        _ => format!("{:.1} calls a second", minute as f64 / 60.0),
    }
}

/// A share that is not rounded up: it is a promise.
pub(super) fn percent(share: Option<f64>) -> String {
    let Some(share) = share else { return "none".to_owned() };
    let tenths = (share * 1000.0 + 1e-9).floor() / 10.0;
    if tenths.fract() == 0.0 { format!("{tenths:.0} %") } else { format!("{tenths:.1} %") }
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(language: &str, depths: &[f64], now: Size) -> Seen {
        Seen {
            language: language.to_owned(),
            depths: Depths::of(depths.iter().copied()),
            busiest_minute: 48,
            lead: Some(LeadTime {
                delay: Duration::from_millis(20),
                making: Duration::from_millis(120),
            }),
            each: 47 << 20,
            is_measured: true,
            now,
        }
    }

    const AIM: Aim = Aim { target: 0.99, memory: None, refills: 2 };

    #[test]
    fn the_reason_is_a_sentence_with_cost_and_gain() {
        let python = seen("python", &[800.0, 110.0, 60.0, 25.0, 5.0], Size::Fixed(2));
        let [advice] = &advise(&[python], AIM)[..] else { unreachable!() };
        assert_eq!(advice.size, 4);
        assert_eq!(
            advice.reason,
            "0.8 calls a second in the busiest minute, a sandbox takes 140 ms: 4 keep 99.5 % of calls warm and take \
             188 MiB (now 2: 91 % and 94 MiB)"
        );
        assert_eq!((&*advice.notes, advice.is_guess), (&[][..], false));
    }

    #[test]
    fn what_there_is_to_know_is_told() {
        let mut few = seen("go", &[5.0, 3.0], Size::Adaptive { min: 1, max: 8, target: 0.9 });
        few.is_measured = false;
        few.lead = None;
        few.busiest_minute = 6000;
        let none = seen("javascript", &[], Size::Fixed(2));
        let advice = advise(&[few, none], AIM);
        assert_eq!(advice[0].size, 2);
        assert!(advice[0].reason.ends_with("(now 1 to 8, which follows the calls by itself)"));
        assert_eq!((advice[0].notes.len(), advice[0].is_guess), (4, true), "{:?}", advice[0].notes);
        assert!(!advice[1].is_guess);
        assert_eq!((advice[1].size, &*advice[1].reason), (2, "no calls were seen, so 2 is left"));
    }

    #[test]
    fn memory_is_kept_within_its_bound() {
        let python = seen("python", &[800.0, 110.0, 60.0, 25.0, 5.0], Size::Fixed(2));
        let other = Seen { language: "other".to_owned(), ..python.clone() };
        let aim = Aim { memory: Some(5 * (47 << 20)), ..AIM };
        let advice = advise(&[python, other], aim);
        assert_eq!([advice[0].size, advice[1].size], [3, 2]);
        assert!(advice[1].notes[0].contains("it would be 4, for 99.5 % and 188 MiB"));
    }

    #[test]
    fn a_share_is_never_rounded_up() {
        let shown = [0.0, 0.5, 0.9899, 0.99, 0.99999, 1.0].map(|share| percent(Some(share)));
        assert_eq!(shown, ["0 %", "50 %", "98.9 %", "99 %", "99.9 %", "100 %"]);
    }
}

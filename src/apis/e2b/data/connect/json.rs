//! Values in the forms that the JSON of protocol buffers allows: bytes as base64 of either alphabet, numbers as texts, enumerations by name
//! or number.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

const ANY_PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, ANY_PADDING);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, ANY_PADDING);

/// Bytes, which are base64 in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Base64(pub Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Base64;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("bytes in base64")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Base64, E> {
                let is_url_safe = text.bytes().any(|it| it == b'-' || it == b'_');
                let engine = if is_url_safe { &URL_SAFE } else { &STANDARD };
                engine
                    .decode(text)
                    .map(Base64)
                    .map_err(|error| E::custom(format_args!("bytes in base64: {error}")))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Appends bytes in base64.
pub(in super::super) fn append_base64(text: &mut String, bytes: &[u8]) {
    STANDARD.encode_string(bytes, text);
}

/// A number without sign, which can also come as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Number(pub u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Number;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number from 0 to 4294967295")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                let fits = u32::try_from(number);
                fits.map(Number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                let fits = u32::try_from(number);
                fits.map(Number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
                    return Err(E::invalid_value(Unexpected::Float(number), &self));
                }
                Ok(Number(number as u32))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                let number = text.parse();
                number.map(Number).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_each_form_of_base64() {
        for text in ["+/8=", "+/8", "-_8=", "-_8"] {
            let read: Base64 = serde_json::from_str(&format!("{text:?}")).unwrap();
            assert_eq!(read.0, [0xfb, 0xff], "{text}");
        }
        assert_eq!(serde_json::from_str::<Base64>("\"\"").unwrap().0, b"");
        for wrong in
            ["\"a\"", "\"+_8=\"", "\"a b=\"", "\"=\"", "1", "[1]", "\"YQ==YQ==\"", "\"YR==\""]
        {
            assert!(serde_json::from_str::<Base64>(wrong).is_err(), "{wrong}");
        }
        let mut text = String::from(">");
        append_base64(&mut text, &[0xfb, 0xff]);
        assert_eq!(text, ">+/8=");
    }

    #[test]
    fn numbers_are_read_as_numbers_and_texts() {
        for (text, number) in
            [("7", 7), ("\"7\"", 7), ("7.0", 7), ("7e0", 7), ("4294967295", u32::MAX)]
        {
            assert_eq!(serde_json::from_str::<Number>(text).unwrap().0, number, "{text}");
        }
        for wrong in ["-1", "1.5", "4294967296", "\"x\"", "\"\"", "true", "1e99", "{}"] {
            assert!(serde_json::from_str::<Number>(wrong).is_err(), "{wrong}");
        }
    }
}

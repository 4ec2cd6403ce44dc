//! A section of the configuration: a struct whose fields are its keys, each with its default and its bounds.
//!
//! A new key is one field. Its doc comment is its description in `isolator config schema`, and `range` its bounds. From
//! these and its type follow how it is read, checked, shown and overridden by the environment.

use std::path::Path;
use std::time::Duration;

use isolator_pool::engine::limits::{ByteSize, CpuShare};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

use crate::duration::{self, UNITS};

/// Defines a section. The default of a key follows its type: `pub max: usize = 32`.
macro_rules! section {
    (
        $(#[$of_section:meta])*
        $visible:vis struct $name:ident {
            $($(#[$of_key:meta])* $key_visible:vis $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        #[derive(Debug, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        $(#[$of_section])*
        $visible struct $name {
            $($(#[$of_key])* $key_visible $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

pub(super) use section;

/// How a key is written whose value has a unit. Used as `#[serde(with = "Mib")]`, also for keys without a default.
pub(super) trait Unit {
    /// The value inside the program.
    type Value: Copy;
    /// The value in the file.
    type Written: Serialize + DeserializeOwned;

    /// The value that is written so, if there is one.
    fn read(written: Self::Written) -> Option<Self::Value>;

    /// How a value is written.
    fn write(value: Self::Value) -> Self::Written;

    fn serialize<S: Serializer>(
        value: &(impl Copy + Into<Option<Self::Value>>),
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let value: Option<Self::Value> = (*value).into();
        value.map(Self::write).serialize(serializer)
    }

    fn deserialize<'de, T: From<Self::Value>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let value = Self::read(Self::Written::deserialize(deserializer)?);
        value.map(T::from).ok_or_else(|| D::Error::custom("is out of range"))
    }
}

/// A size in units of 2 to the power of `SHIFT` bytes.
pub(super) struct Binary<const SHIFT: u32>;

/// A size in KiB.
pub(super) type Kib = Binary<10>;

/// A size in MiB.
pub(super) type Mib = Binary<20>;

impl<const SHIFT: u32> Unit for Binary<SHIFT> {
    type Value = ByteSize;
    type Written = u64;

    fn read(written: u64) -> Option<ByteSize> {
        written.checked_mul(1 << SHIFT).map(ByteSize::bytes)
    }

    fn write(value: ByteSize) -> u64 {
        value.as_bytes() >> SHIFT
    }
}

/// CPU time in cores.
pub(super) struct Cores;

impl Unit for Cores {
    type Value = CpuShare;
    type Written = f64;

    fn read(written: f64) -> Option<CpuShare> {
        CpuShare::from_cores(written)
    }

    fn write(value: CpuShare) -> f64 {
        value.as_cores()
    }
}

/// A duration as a number of seconds.
pub(super) struct Seconds;

impl Unit for Seconds {
    type Value = Duration;
    type Written = f64;

    fn read(written: f64) -> Option<Duration> {
        Duration::try_from_secs_f64(written).ok()
    }

    fn write(value: Duration) -> f64 {
        value.as_secs_f64()
    }
}

/// A duration as a text with units, such as `1h 30m`.
pub(super) struct Text;

impl Unit for Text {
    type Value = Duration;
    type Written = String;

    fn read(written: String) -> Option<Duration> {
        duration::parse(&written).ok()
    }

    fn write(value: Duration) -> String {
        duration::shown(value)
    }
}

/// The pattern of a duration. Editors can check it, and [`super::shape`] recognizes durations by it.
pub(super) fn any_duration(_: &mut SchemaGenerator) -> Schema {
    let part = format!("[0-9]+ *({})", UNITS.join("|"));
    json_schema!({ "type": "string", "pattern": format!("^{part}( *{part})*$") })
}

/// The pattern of a duration that is not zero.
pub(super) fn duration(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = any_duration(generator);
    schema.insert("not".to_owned(), serde_json::json!({ "pattern": "^[^1-9]*$" }));
    schema
}

/// Writes a path, of which the parts that are not UTF-8 are lost.
pub(super) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

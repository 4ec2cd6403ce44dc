//! Limits of a sandbox: memory, CPU time, processes, files.

use std::fmt;

/// An amount of memory or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// An amount in bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// An amount in mebibytes (2^20 bytes).
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// The amount in bytes.
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// The amount in bytes as a length in memory; saturating.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The amount in whole mebibytes.
    pub const fn as_mib(self) -> u64 {
        self.0 >> 20
    }

    /// The amount in bytes as the signed number that engines take; saturating.
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// A limit that not every machine can enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Of memory.
    Memory,
    /// Of CPU time.
    Cpu,
    /// Of processes.
    Processes,
}

impl LimitKind {
    /// The kinds in words, as "memory and CPU time".
    pub fn list(kinds: &[Self]) -> String {
        kinds.iter().map(Self::to_string).collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Cpu => "CPU time",
            Self::Processes => "processes",
        })
    }
}

/// A share of CPU time, in thousandths of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare(u32);

impl CpuShare {
    /// A share in thousandths of one core.
    pub const fn millis(millis: u32) -> Self {
        Self(millis)
    }

    /// A share in cores, rounded to thousandths; `None` if it is not a positive, sensible number.
    pub fn from_cores(cores: f64) -> Option<Self> {
        let millis = (cores * 1000.0).round();
        (millis >= 1.0 && millis <= f64::from(u32::MAX)).then_some(Self(millis as u32))
    }

    /// The share in thousandths of one core.
    pub const fn as_millis(self) -> u32 {
        self.0
    }

    /// The share in cores.
    pub fn as_cores(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// The share in billionths of one core, the engine's unit.
    pub fn as_nano_cpus(self) -> i64 {
        i64::from(self.0) * 1_000_000
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPU", self.as_cores())
    }
}

/// The limits that can still change once a sandbox exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Memory, tmpfs contents included; no swap is added to it.
    pub memory: ByteSize,
    /// CPU time.
    pub cpu: CpuShare,
}

/// The limits that are set when a sandbox is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedLimits {
    /// Processes and threads.
    pub pids: u32,
    /// Open files of each process.
    pub open_files: u32,
    /// Size of the workspace's file system.
    pub workspace: ByteSize,
    /// Size of `/tmp`.
    pub tmp: ByteSize,
    /// Files and directories in the workspace, and again in `/tmp`. A tmpfs without such a limit
    /// takes kernel memory that no other limit covers.
    pub inodes: u32,
    /// Size of `/dev/shm`.
    pub shm: ByteSize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(ByteSize::mib(256).to_string(), "256 MiB");
        assert_eq!(ByteSize::mib(2048).to_string(), "2 GiB");
        assert_eq!(ByteSize::bytes(1500).to_string(), "1500 bytes");
    }

    #[test]
    fn shares_that_are_not_positive_are_refused() {
        assert_eq!(CpuShare::from_cores(0.5).map(CpuShare::as_nano_cpus), Some(500_000_000));
        for cores in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.0001] {
            assert_eq!(CpuShare::from_cores(cores), None);
        }
    }
}

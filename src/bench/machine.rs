//! On what was measured. Times of another machine mean little without it.

use std::fmt;
use std::fs;
use std::thread;
use std::time::SystemTime;

use isolator_pool::limits::ByteSize;
use serde::Serialize;

/// The machine, the engine and the day.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// The engine and its version.
    pub engine: String,
    /// Version of Isolator.
    pub isolator: &'static str,
    /// The day, in UTC.
    pub date: String,
}

impl Machine {
    /// This machine. `engine` is what [`Engine::check`](isolator_pool::engine::Engine::check) says;
    /// its address is left out, because results are shown around.
    pub fn here(engine: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Self {
            cpu: cpu(&read("/proc/cpuinfo")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: kernel.trim().to_owned(),
            engine: engine.split(", at ").next().unwrap_or(engine).to_owned(),
            isolator: env!("CARGO_PKG_VERSION"),
            date: now.split('T').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, memory_bytes, kernel, engine, isolator, date } = self;
        let memory = *memory_bytes as f64 / ByteSize::mib(1024).as_bytes() as f64;
        write!(
            f,
            "{cpu}, {cores} cores, {memory:.1} GiB, Linux {kernel}; {engine}; Isolator {isolator}; \
             {date}"
        )
    }
}

/// The model's name. Not every architecture tells one.
fn cpu(cpuinfo: &str) -> String {
    let model = value(cpuinfo, "model name").or_else(|| value(cpuinfo, "Model"));
    let model = model.unwrap_or(std::env::consts::ARCH);
    model.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn memory(meminfo: &str) -> u64 {
    let kib = value(meminfo, "MemTotal").and_then(|value| value.strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() << 10
}

/// The value of a line `name : value`.
fn value<'a>(lines: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = lines.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_files_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some(R)  CPU @ 2GHz\nflags\t: a b\n";
        assert_eq!(cpu(cpuinfo), "Some(R) CPU @ 2GHz");
        assert_eq!(cpu("processor\t: 0\n"), std::env::consts::ARCH);
        assert_eq!(memory("MemTotal:        2048 kB\nMemFree: 1 kB\n"), 2 << 20);
    }

    #[test]
    fn results_that_are_shown_around_name_no_address() {
        let machine = Machine::here("Docker Engine 20.10, API 1.41, at tcp://10.0.0.1:2375");
        assert_eq!(machine.engine, "Docker Engine 20.10, API 1.41");
        let shown = machine.to_string();
        assert!(shown.contains("Linux") && !shown.contains("10.0.0.1"), "{shown}");
    }
}

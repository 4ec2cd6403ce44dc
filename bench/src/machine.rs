//! The machine that was measured on. Times mean little without it.

use std::fmt;
use std::fs;
use std::thread;
use std::time::SystemTime;

use isolator_pool::engine::limits::ByteSize;
use serde::Serialize;

/// The machine, the engines and the day.
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
    /// The engines and their versions.
    pub engines: Vec<String>,
    /// Version of Isolator.
    pub isolator: &'static str,
    /// The day, in UTC.
    pub date: String,
    /// Share of the CPU time, from 0 to 1, that the machine's host gave to others meanwhile. Where it is
    /// more than a hundredth, the slowest samples are the host's.
    pub stolen: f64,
}

/// CPU time since the machine was started, in the kernel's ticks.
#[derive(Debug, Clone, Copy)]
pub struct CpuTimes {
    all: u64,
    stolen: u64,
}

impl CpuTimes {
    /// Until now; nothing where the kernel does not tell.
    pub fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line is of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal, and then
    /// what is part of user and nice.
    fn read(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let times = line.split_whitespace().skip(1).take(8).map(|time| time.parse().unwrap_or(0));
        let times: Vec<u64> = times.collect();
        Self { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or(0) }
    }

    /// Share of the time since then that was stolen, from 0 to 1.
    pub fn stolen_until(self, now: Self) -> f64 {
        let all = now.all.saturating_sub(self.all).max(1);
        now.stolen.saturating_sub(self.stolen) as f64 / all as f64
    }
}

impl Machine {
    /// This machine. `engines` is what [`Engine::check`](isolator_pool::engine::Engine::check) says of each;
    /// addresses and directories are left out, because results are shown around.
    pub fn here<'a>(engines: impl IntoIterator<Item = &'a str>) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Self {
            cpu: cpu(&read("/proc/cpuinfo")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: kernel.trim().to_owned(),
            engines: engines.into_iter().map(without_place).collect(),
            isolator: env!("CARGO_PKG_VERSION"),
            date: now.split('T').next().unwrap_or_default().to_owned(),
            stolen: 0.0,
        }
    }
}

impl Machine {
    /// Its description, part by part.
    pub fn parts(&self) -> Vec<String> {
        let Self { cpu, cores, memory_bytes, kernel, engines, isolator, date, stolen } = self;
        let memory = *memory_bytes as f64 / ByteSize::mib(1024).as_bytes() as f64;
        let mut parts = vec![format!("{cpu}, {cores} cores, {memory:.1} GiB, Linux {kernel}")];
        parts.extend(engines.iter().cloned());
        parts.extend([format!("Isolator {isolator}"), date.clone()]);
        if *stolen >= 0.005 {
            parts.push(format!("{:.0} % of its CPU time went to other machines", stolen * 100.0));
        }
        parts
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts().join("; "))
    }
}

/// What an engine says of itself, without where it or its images are.
fn without_place(engine: &str) -> String {
    let end = [", at ", ", images in "].iter().filter_map(|place| engine.find(place)).min();
    engine[..end.unwrap_or(engine.len())].to_owned()
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
    fn stolen_time_is_shown() {
        let before = CpuTimes::read("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2\n");
        let after = CpuTimes::read("cpu  20 0 20 135 0 0 0 25 9 0\n");
        assert!((before.stolen_until(after) - 0.15).abs() < 1e-9);
        assert!(before.stolen_until(before).abs() < 1e-9);
        assert!(CpuTimes::read("").stolen_until(CpuTimes::now()) < 1.0);
        let mut machine = Machine::here([]);
        assert!(!machine.to_string().contains('%'));
        machine.stolen = 0.15;
        assert!(machine.to_string().ends_with("15 % of its CPU time went to other machines"));
    }

    #[test]
    fn results_that_are_shown_around_name_engines_without_their_places() {
        let machine = Machine::here([
            "Docker Engine 20.10, API 1.41, at tcp://10.0.0.1:2375",
            "embedded engine on Linux 6.1, as root, images in /home/me/images",
        ]);
        let engines = ["Docker Engine 20.10, API 1.41", "embedded engine on Linux 6.1, as root"];
        assert_eq!(machine.engines, engines);
        let shown = machine.to_string();
        assert!(engines.iter().all(|engine| shown.contains(engine)), "{shown}");
        assert!(!shown.contains("10.0.0.1") && !shown.contains("/home/me"), "{shown}");
    }
}

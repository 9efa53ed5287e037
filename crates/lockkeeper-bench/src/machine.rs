//! Facts about the machine, without which figures say nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What results are measured on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Release and version of the kernel.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// The cpus that tasks may run on.
    pub cpus: usize,
    /// Bytes of memory, as /proc/meminfo says it.
    pub memory: String,
    /// The cpu frequency governor; `none` where the kernel controls none.
    pub governor: String,
    /// Whether it is a virtual machine, where the processor tells.
    pub virtualised: bool,
    /// What is done against each vulnerability of the processor.
    pub mitigations: BTreeMap<String, String>,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let field = |all: &str, name: &str| {
            all.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        let unknown = || "unknown".to_owned();
        Machine {
            kernel: format!("{} {}", text(uname.release()), text(uname.version())),
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| text(uname.machine())),
            cpus: cpus_allowed().len(),
            memory: read("/proc/meminfo")
                .and_then(|meminfo| field(&meminfo, "MemTotal"))
                .unwrap_or_else(unknown),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .unwrap_or_else(|| "none".to_owned()),
            virtualised: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            mitigations: mitigations(),
        }
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn mitigations() -> BTreeMap<String, String> {
    let folder = Path::new("/sys/devices/system/cpu/vulnerabilities");
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    let said = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((name, text.trim().to_owned()))
    });
    said.collect()
}

/// The cpus that this process may run on, by number.
pub fn cpus_allowed() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let cpus: Vec<usize> = set
        .map(|set| (0..1024).filter(|&cpu| set.is_set(cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

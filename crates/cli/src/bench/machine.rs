//! Memory and processor time of a process, from `/proc`.

/// Resident memory in MiB.
pub fn rss_mb() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4_096.0 / 1_048_576.0)
}

/// The peak of resident memory, in MiB.
pub fn rss_peak_mb() -> Option<f64> {
    rss_peak_mb_of(std::process::id())
}

pub fn rss_peak_mb_of(process: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1_024.0)
}

/// Processor time used so far, in seconds.
pub fn cpu_s() -> Option<f64> {
    cpu_s_of(std::process::id())
}

pub fn cpu_s_of(process: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain spaces, so fields are counted after it.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

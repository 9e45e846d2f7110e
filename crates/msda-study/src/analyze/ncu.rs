//! Hardware counters, read by `ncu`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Counters: metric, end of the figure's name, unit of the figure.
pub(super) const METRICS: [(&str, &str, &str); 13] = [
    ("gpu__time_duration.sum", "duration", "us"),
    ("l1tex__data_pipe_lsu_wavefronts.sum", "wavefronts.measured", ""),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "wavefronts-shared.measured", ""),
    ("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", "data-path.measured", "%"),
    ("l1tex__data_bank_conflicts_pipe_lsu.sum", "bank-conflicts-all.measured", ""),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "bank-conflicts.measured", ""),
    ("l1tex__t_sector_hit_rate.pct", "hit-rate.measured", "%"),
    ("lts__t_sectors.sum", "l2-sectors.measured", ""),
    ("dram__bytes.sum", "dram.measured", "B"),
    ("smsp__inst_executed.sum", "instructions.measured", ""),
    ("smsp__issue_active.avg.pct_of_peak_sustained_active", "issue.measured", "%"),
    ("smsp__warps_active.avg.pct_of_peak_sustained_active", "occupancy.measured", "%"),
    ("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", "stall-memory.measured", ""),
];

/// Kernels that only prepare inputs. Their launches do not count.
const HELPERS: [&str; 7] =
    ["msda_order", "msda_pack", "msda_texels", "msda_top", "msda_quantise", "msda_flush", "flush"];

/// An error if `ncu` is missing.
pub(super) fn find() -> Result<()> {
    match Command::new("ncu").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => bail!(
            "counters: got no program `ncu`, expected Nsight Compute\nhint: it is part of the CUDA toolkit"
        ),
    }
}

/// Runs a program that launches the kernel once and returns its counters, by metric, in base units.
pub(super) fn count(program: &Path, args: &[&str]) -> Result<Counters> {
    let metrics: Vec<&str> = METRICS.iter().map(|(metric, ..)| *metric).collect();
    let output = Command::new("ncu")
        .args(["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"])
        .args(["--metrics", &metrics.join(",")])
        .arg(program)
        .args(args)
        .output()
        .context("starting ncu")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said: Vec<&str> = text.lines().filter(|line| line.starts_with("==")).collect();
        let also = String::from_utf8_lossy(&output.stderr);
        bail!("ncu: {}: {} {}", output.status, said.join(" "), also.trim());
    }
    let main = parse(&text)?.into_iter();
    let main = main.filter(|(name, _)| !HELPERS.iter().any(|helper| name.starts_with(helper)));
    let time = |counters: &Counters| counters.get("gpu__time_duration.sum").copied().unwrap_or(0.0);
    let longest = main.map(|(_, counters)| counters).max_by(|a, b| time(a).total_cmp(&time(b)));
    longest.context("ncu: got no kernel, expected one")
}

/// Counters of a launch by metric. Times are in microseconds.
type Counters = BTreeMap<String, f64>;

/// Parses `ncu --csv --page raw`: lines about the run, a line of names, a line of units, then one
/// line per launch. Returns the names of the kernels and their counters.
fn parse(text: &str) -> Result<Vec<(String, Counters)>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("\"ID\""));
    let (Some(names), Some(units)) = (lines.next(), lines.next()) else {
        bail!("ncu: got no table, expected a line that begins with \"ID\"");
    };
    let (names, units) = (fields(names), fields(units));
    let kernel =
        names.iter().position(|name| name == "Kernel Name").context("ncu: no column 'Kernel Name'")?;
    let mut kernels = Vec::new();
    for line in lines.filter(|line| line.starts_with('"')) {
        let cells = fields(line);
        if cells.len() != names.len() {
            bail!("ncu: got {} cells, expected {}: {line}", cells.len(), names.len());
        }
        let mut counters = Counters::new();
        for (i, name) in names.iter().enumerate().filter(|(_, name)| name.contains("__")) {
            // Some locales separate thousands by commas.
            if let Ok(value) = cells[i].replace(',', "").parse::<f64>() {
                let unit = units.get(i).map_or("", String::as_str);
                counters.insert(name.clone(), value * scale(unit));
            }
        }
        kernels.push((cells[kernel].clone(), counters));
    }
    Ok(kernels)
}

/// The factor from a unit to bytes, microseconds or plain numbers.
fn scale(unit: &str) -> f64 {
    match unit {
        "Kbyte" => 1e3,
        "Mbyte" => 1e6,
        "Gbyte" => 1e9,
        "nsecond" | "ns" => 1e-3,
        "msecond" | "ms" => 1e3,
        "second" | "s" => 1e6,
        _ => 1.0,
    }
}

/// The cells of a line. Each is quoted, and a quote inside is doubled.
fn fields(line: &str) -> Vec<String> {
    let line = line.trim_end();
    let inside = line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap_or(line);
    inside.split("\",\"").map(|cell| cell.replace("\"\"", "\"")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"==PROF== Connected to process 4242
==PROF== Profiling "msda_forward" - 0: 0%....50%....100% - 3 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum","gpu__time_duration.sum","l1tex__data_pipe_lsu_wavefronts.sum","l1tex__t_sector_hit_rate.pct"
"","","","","","","","","","","","Mbyte","nsecond","","%"
"0","4242","msda","127.0.0.1","msda_order(Args)","1","7","(256, 1, 1)","(38, 6, 1)","0","9.0","1.50","900,000","12","0"
"1","4242","msda","127.0.0.1","msda_forward","1","7","(512, 1, 1)","(389, 4, 4)","0","9.0","252.25","205,312","37,040,253","78.02"
"2","4242","msda","127.0.0.1","odd ""name"", too","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","n/a","1000","5","0"
"#;

    #[test]
    fn the_table_is_read() {
        let kernels = parse(SAMPLE).unwrap();
        let names: Vec<&str> = kernels.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["msda_order(Args)", "msda_forward", "odd \"name\", too"]);
        let forward = &kernels[1].1;
        assert_eq!(forward["l1tex__data_pipe_lsu_wavefronts.sum"], 37_040_253.0);
        assert!((forward["gpu__time_duration.sum"] - 205.312).abs() < 1e-9);
        assert!((forward["dram__bytes.sum"] - 252.25e6).abs() < 1.0);
        assert!(!kernels[2].1.contains_key("dram__bytes.sum"));
    }

    #[test]
    fn other_text_is_refused() {
        assert!(parse("==ERROR== ERR_NVGPUCTRPERM").unwrap_err().to_string().contains("no table"));
        let short = SAMPLE.lines().take(4).collect::<Vec<_>>().join("\n") + "\n\"1\",\"2\"\n";
        assert!(parse(&short).unwrap_err().to_string().contains("2 cells"));
    }
}

//! Random problems that a model could have. Each is timed and compared with the problems that are
//! most like it: a problem that is much slower per gathered byte than they are has a bad kernel.

use anyhow::Result;
use msda::Problem;
use msda::rng::Rng;

use crate::record::{Measurement, Record};
use crate::timing::summarize;

/// Problems with the same channels, points and types: a kernel is compiled for these, so that few
/// kernels serve many problems.
const KINDS: usize = 50;
/// The most samples of a problem, and the most numbers of its value.
const MAX_SAMPLES: usize = 1 << 22;
const MAX_VALUE: usize = 1 << 23;
/// A problem is compared with this many others.
const NEAREST: usize = 5;
/// An entry is slow if it takes this many times as long per byte as the others.
pub const SLOW: f64 = 2.0;

/// A measurement beside those most like it.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The measurement.
    pub measurement: &'a Measurement,
    /// Picoseconds per gathered byte.
    pub per_byte: f64,
    /// The time per byte over the median of the problems most like it; none if there are no others.
    pub ratio: Option<f64>,
    /// The problem most like it.
    pub nearest: Option<&'a Measurement>,
}

/// The text of the workload called `random-SEED-NUMBER`; none for another name.
pub fn named(name: &str) -> Option<String> {
    let (seed, number) = name.strip_prefix("random-")?.split_once('-')?;
    Some(draw(seed.parse().ok()?, number.parse().ok()?))
}

/// The problem with a number. It depends on the seed and the number alone.
fn draw(seed: u64, number: usize) -> String {
    const CHANNELS: [usize; 22] =
        [1, 3, 8, 16, 16, 20, 24, 32, 32, 32, 32, 33, 36, 40, 48, 64, 64, 80, 96, 100, 128, 256];
    const POINTS: [&[usize]; 12] = [
        &[2],
        &[4],
        &[1, 1],
        &[4; 3],
        &[4; 3],
        &[3, 6, 3],
        &[4; 4],
        &[4; 4],
        &[2; 4],
        &[8; 4],
        &[4; 5],
        &[8; 3],
    ];
    const TYPES: [&str; 10] = ["f16", "f16", "f16", "f16", "f32", "f32", "f32", "bf16", "bf16", "f64"];
    let mut r = Rng::new(seed.rotate_left(32) ^ (number % KINDS) as u64);
    let (channels, points, dtype) = (r.pick(&CHANNELS), r.pick(&POINTS), r.pick(&TYPES));
    let coordinates = r.pick(&["f32", "value"]);

    let mut r = Rng::new(r.bits() ^ number as u64);
    let (mut batch, mut heads) = (r.pick(&[1, 1, 2, 2, 4, 8, 16]), r.pick(&[1, 2, 4, 6, 8, 8, 8, 12, 16]));
    while heads > 1 && heads * channels > 1024 {
        heads /= 2;
    }
    let height = r.between(12.0, 134.0);
    let mut finest = (height, height * r.between(0.6, 1.8));
    let (queries, references) = match r.below(20) {
        0..7 => (None, "pixels"),
        7..15 => (Some(r.pick(&[100, 300, 300, 500, 900, 1100])), "random"),
        15..17 => (Some(300 * (2 + r.below(12))), "random"),
        _ => (Some((20 + r.below(80)).pow(2)), "grid"),
    };
    let levels = loop {
        let side = |side: f64, level: usize| ((side / (1u64 << level) as f64).ceil() as usize).max(1);
        let levels: Vec<[usize; 2]> =
            (0..points.len()).map(|l| [side(finest.0, l), side(finest.1, l)]).collect();
        let positions: usize = levels.iter().map(|[h, w]| h * w).sum();
        let samples = batch * queries.unwrap_or(positions) * heads * points.iter().sum::<usize>();
        if samples <= MAX_SAMPLES && batch * positions * heads * channels <= MAX_VALUE {
            break levels;
        }
        match batch {
            1 => finest = (finest.0 * 0.75, finest.1 * 0.75),
            _ => batch /= 2,
        }
    };
    let queries = queries.map_or("\"positions\"".into(), |n| n.to_string());
    format!(
        "about = \"random problem {number} of seed {seed}\"\nbatch = {batch}\nqueries = {queries}\n\
         heads = {heads}\nchannels = {channels}\nlevels = {levels:?}\npoints = {points:?}\n\
         dtypes = [\"{dtype}\"]\ncoordinates = \"{coordinates}\"\n\
         [locations]\nkind = \"reference\"\nreferences = \"{references}\"\nseed = {}\n",
        number + 1
    )
}

/// The names of the first problems of a seed.
pub fn names(seed: u64, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("random-{seed}-{number}")).collect()
}

/// The measurements of a record of random problems, the slowest per gathered byte first. `problem`
/// finds the problem of a measurement.
pub fn entries(record: &Record, problem: impl Fn(&Measurement) -> Result<Problem>) -> Result<Vec<Entry<'_>>> {
    let place = |m: &Measurement| Ok(place(&problem(m)?, m.work.gathered_bytes));
    let places = record.measurements.iter().map(place).collect::<Result<Vec<_>>>()?;
    let per_byte = |m: &Measurement| m.time.median * 1e9 / m.work.gathered_bytes.max(1.0);
    let mut entries = Vec::new();
    for (m, here) in record.measurements.iter().zip(&places) {
        let alike = |other: &Measurement| {
            (&other.engine, other.pass) == (&m.engine, m.pass) && other.workload != m.workload
        };
        let mut others: Vec<(f64, &Measurement)> = record
            .measurements
            .iter()
            .zip(&places)
            .filter(|(other, _)| alike(other))
            .map(|(other, place)| (distance(here, place), other))
            .collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0));
        others.truncate(NEAREST);
        let nearest = others.first().map(|(_, other)| *other);
        let times: Vec<f64> = others.iter().map(|(_, other)| per_byte(other)).collect();
        let ratio = nearest.map(|_| per_byte(m) / summarize(&times).median);
        entries.push(Entry { measurement: m, per_byte: per_byte(m), ratio, nearest });
    }
    entries.sort_by(|a, b| b.per_byte.total_cmp(&a.per_byte));
    Ok(entries)
}

/// Where a problem lies among others: the logarithms of the sizes that its time depends on. The
/// bytes of a row count twice, because short rows use a part of a cache line.
fn place(p: &Problem, gathered_bytes: f64) -> [f64; 6] {
    let element = p.types().value.size();
    [
        gathered_bytes,
        ((p.channels() * element) as f64).powi(2),
        element as f64,
        p.samples() as f64,
        p.queries() as f64,
        (p.value_len() * element) as f64,
    ]
    .map(|size| size.max(1.0).log2())
}

fn distance(a: &[f64; 6], b: &[f64; 6]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{self, Silent};
    use crate::engines::Registry;
    use crate::workload::Workload;

    #[test]
    fn problems_depend_on_seed_and_number_alone_and_are_bounded() {
        let mut kinds = std::collections::BTreeSet::new();
        for number in 0..200 {
            let name = format!("random-7-{number}");
            let workload = Workload::find(&name).unwrap();
            let p = workload.problem(workload.dtypes[0]).unwrap();
            assert_eq!(Workload::find(&name).unwrap().problem(workload.dtypes[0]).unwrap(), p);
            assert!(p.weights_len() <= MAX_SAMPLES && p.value_len() <= MAX_VALUE, "{p}");
            assert!(p.output_len() > 0, "{p}");
            kinds.insert(format!("{} {:?} {:?}", p.channels(), p.points(), p.types()));
        }
        assert!((KINDS / 2..=KINDS).contains(&kinds.len()), "{}", kinds.len());
        assert_ne!(draw(7, 0), draw(8, 0));
        for wrong in ["random", "random-7", "random-x-1", "random-1-x", "random-1-2-3"] {
            assert!(Workload::find(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_slow_problem_stands_out_from_those_most_like_it() {
        let (workloads, engines) = (names(4, 8), vec!["cpu".into()]);
        let options = bench::Options { workloads, engines, brief: true, ..bench::Options::default() };
        let mut record = bench::run(&options, &Registry::default(), &mut Silent).unwrap();
        assert_eq!((record.measurements.len(), record.skipped.len()), (16, 0));
        for m in &mut record.measurements {
            m.time.median = m.work.gathered_bytes / 1e9;
        }
        record.measurements[5].time.median *= 10.0;
        let slow = record.measurements[5].workload.clone();
        let problem = |m: &Measurement| Workload::find(&m.workload)?.problem(m.dtype.parse()?);
        let entries = entries(&record, problem).unwrap();
        assert_eq!((entries.len(), &entries[0].measurement.workload), (16, &slow));
        assert!((entries[0].per_byte - 10.0).abs() < 1e-9 && entries[0].nearest.is_some());
        assert!((entries[0].ratio.unwrap() - 10.0).abs() < 1e-9);
        assert!(entries[1..].iter().all(|entry| entry.ratio.unwrap() < SLOW));
    }
}

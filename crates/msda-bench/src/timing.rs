//! Repeated runs and their statistics.

use std::time::{Duration, Instant};

use crate::record::Summary;

/// How long and how often to run.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Time for the timed runs.
    pub budget: Duration,
    /// The fewest runs.
    pub at_least: usize,
    /// The most runs.
    pub at_most: usize,
    /// Whether to run once before the timed runs.
    pub warm_up: bool,
    /// Whether to measure the cost of launches too.
    pub launching: bool,
}

impl Effort {
    /// The usual effort.
    pub const FULL: Self = Self {
        budget: Duration::from_millis(800),
        at_least: 3,
        at_most: 300,
        warm_up: true,
        launching: true,
    };
    /// Fewer runs.
    pub const QUICK: Self = Self { budget: Duration::from_millis(250), at_most: 100, ..Self::FULL };
    /// Few runs, for many problems.
    pub const BRIEF: Self =
        Self { budget: Duration::from_millis(30), at_least: 5, at_most: 30, launching: false, ..Self::FULL };

    /// One of `n` equal parts of the effort.
    pub fn part(self, n: u32) -> Self {
        let share = |runs: usize| runs.div_ceil(n as usize);
        Self { budget: self.budget / n, at_least: share(self.at_least), at_most: share(self.at_most), ..self }
    }

    /// Whether runs that took these milliseconds are enough for `k` of `n` parts.
    pub fn is_spent(self, times: &[f64], k: u32, n: u32) -> bool {
        let enough = (self.at_least * k as usize).div_ceil(n as usize);
        let spent = Duration::from_secs_f64(times.iter().sum::<f64>() / 1e3);
        times.len() >= enough && spent * n >= self.budget * k
    }
}

/// Runs `f` repeatedly; returns milliseconds.
pub fn repeat<E>(effort: Effort, mut f: impl FnMut() -> Result<(), E>) -> Result<Vec<f64>, E> {
    if effort.warm_up {
        f()?;
    }
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < effort.at_least || (start.elapsed() < effort.budget && times.len() < effort.at_most) {
        let run = Instant::now();
        f()?;
        times.push(run.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Order statistics, which a few slow runs do not move.
pub fn summarize(times: &[f64]) -> Summary {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| match sorted.len() {
        0 => 0.0,
        n => sorted[((n - 1) as f64 * share).round() as usize],
    };
    Summary { median: at(0.5), min: at(0.0), p10: at(0.1), p90: at(0.9), runs: sorted.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_run_does_not_move_the_median() {
        let s = summarize(&[3.0, 1.0, 2.0, 1000.0, 2.5]);
        assert_eq!((s.median, s.min, s.runs), (2.5, 1.0, 5));
        assert_eq!(summarize(&[]).runs, 0);
    }

    #[test]
    fn slow_things_take_few_of_many_rounds() {
        let effort = Effort::FULL;
        let rounds = |ms: f64| {
            let mut times = Vec::new();
            (1..=6)
                .filter(|&k| {
                    !effort.is_spent(&times, k, 6) && {
                        times.push(ms);
                        true
                    }
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(rounds(1000.0), [1, 3, 5]);
        assert_eq!(rounds(1.0), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn slow_things_run_at_least_a_few_times() {
        for warm_up in [false, true] {
            let effort = Effort { budget: Duration::ZERO, at_least: 4, at_most: 10, warm_up, ..Effort::FULL };
            let mut runs = 0;
            let times = repeat(effort, || {
                runs += 1;
                Ok::<(), ()>(())
            });
            assert_eq!((times.unwrap().len(), runs), (4, 4 + usize::from(warm_up)));
        }
    }
}

//! Workloads: problems with data, described in TOML.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use msda::rng::Rng;
use msda::{Buffer, Dtype, Layout, Problem, Spec, Types};
use rayon::prelude::*;
use serde::{Deserialize, Deserializer, de};

use crate::Unknown;
use crate::files::cannot;

/// The built-in workloads: name and text.
pub use msda_workloads::ALL as BUILT_IN;

/// A benchmark: sizes, types and locations of samples.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name: that of the file, without the extension.
    #[serde(skip)]
    pub name: String,
    /// Its text.
    #[serde(skip)]
    pub text: String,
    /// One line of description.
    pub about: String,
    /// Value types to measure, the main one first.
    #[serde(deserialize_with = "dtypes")]
    pub dtypes: Vec<Dtype>,
    batch: usize,
    queries: NumberOr<String>,
    heads: usize,
    channels: usize,
    levels: Vec<(usize, usize)>,
    points: NumberOr<Vec<usize>>,
    layout: Option<String>,
    #[serde(default)]
    coordinates: Coordinates,
    locations: Locations,
}

/// The type of locations and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Coordinates {
    /// `f32` for values of every type but `f64`.
    #[default]
    F32,
    /// The values' type, as in a model under autocast.
    Value,
}

/// Reads the names of types: at least one.
fn dtypes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Dtype>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    if names.is_empty() {
        return Err(de::Error::custom("dtypes: got none, expected at least one"));
    }
    names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
}

/// What a size or a seed must be.
const WHOLE: &str = "expected a whole number, 0 or more";

/// A number, or something else in its place.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a whole number, 0 or more, or the other form of this key")]
enum NumberOr<T> {
    Number(usize),
    Other(T),
}

/// The layout of value with this name.
pub fn layout(name: &str) -> Result<Layout> {
    let all = Layout::ALL.map(Layout::name);
    Layout::ALL
        .into_iter()
        .find(|layout| layout.name() == name)
        .with_context(|| format!("layout: got '{name}', expected one of {}", all.join(", ")))
}

/// The distribution of samples.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Locations {
    kind: Distribution,
    #[serde(default)]
    references: References,
    #[serde(default = "two_pixels")]
    spread: f64,
    #[serde(default)]
    outside: f64,
    seed: u64,
}

fn two_pixels() -> f64 {
    2.0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Distribution {
    Uniform,
    Point,
    Reference,
    Clustered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum References {
    Pixels,
    Grid,
    #[default]
    Random,
}

impl Workload {
    /// A built-in or [random](crate::random) workload by name, or a file by path.
    pub fn find(name: &str) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
            return Self::parse(name, text);
        }
        if let Some(text) = crate::random::named(name) {
            return Self::parse(name, &text);
        }
        let path = Path::new(name);
        if path.extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(path).map_err(|why| cannot("read", path, why))?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            return Self::parse(&stem, &text).with_context(|| format!("in {name}"));
        }
        let names = BUILT_IN.map(|(name, _)| name);
        Err(Unknown::or("workload", name, &names, ", or a path to a .toml file").into())
    }

    /// A workload from its text.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let file: Self = toml::from_str(text).map_err(|why| {
            // The names of Rust types.
            let why = ["usize", "u64"]
                .iter()
                .fold(why.to_string(), |why, kind| why.replace(&format!("expected {kind}"), WHOLE));
            anyhow!("{}\nhint: crates/msda-bench/workloads/README.md describes the keys", why.trim_end())
        })?;
        let workload = Self { name: name.to_owned(), text: text.to_owned(), ..file };
        let problem = workload.problem(Dtype::F32)?;
        if workload.locations.references == References::Pixels {
            let pixels: usize = problem.levels().iter().map(|l| l.h * l.w).sum();
            ensure!(
                pixels == problem.queries(),
                "references = 'pixels': got {} queries, expected one for each of {pixels} pixels",
                problem.queries()
            );
        }
        Ok(workload)
    }

    /// The problem with values of this type. The workload sets the type of locations and weights;
    /// it is `f64` for `f64` values.
    pub fn problem(&self, dtype: Dtype) -> Result<Problem> {
        let types = match (dtype, self.coordinates) {
            (Dtype::F64, _) | (_, Coordinates::Value) => Types::uniform(dtype),
            _ => Types::with_value(dtype),
        };
        let points = match &self.points {
            NumberOr::Number(n) => vec![*n; self.levels.len()],
            NumberOr::Other(points) => points.clone(),
        };
        let queries = match &self.queries {
            NumberOr::Number(n) => *n,
            NumberOr::Other(word) if word == "positions" => {
                self.levels.iter().map(|&(h, w)| h.saturating_mul(w)).sum()
            }
            NumberOr::Other(word) => bail!("queries: got '{word}', expected a number or 'positions'"),
        };
        Ok(Problem::new(Spec {
            batch: self.batch,
            queries,
            heads: self.heads,
            channels: self.channels,
            levels: self.levels.clone(),
            points,
            layout: self.layout.as_deref().map_or(Ok(Layout::default()), layout)?,
            types,
            ..Spec::default()
        })?)
    }

    /// Its data for values of the given type. The numbers of all types differ by rounding only.
    pub fn data(&self, dtype: Dtype) -> Result<Data> {
        self.data_of(self.problem(dtype)?)
    }

    /// The data of its first images.
    pub fn first_images(&self, dtype: Dtype, images: usize) -> Result<Data> {
        self.data_of(self.problem(dtype)?.with(|s| s.batch = s.batch.min(images))?)
    }

    /// The same distribution of samples over another problem. `spread` replaces the distance of the
    /// samples from their reference, in pixels.
    pub fn varied(&self, problem: Problem, spread: Option<f64>) -> Result<Data> {
        let mut other = self.clone();
        if let Some(spread) = spread {
            other.locations.spread = spread;
        }
        other.data_of(problem)
    }

    fn data_of(&self, problem: Problem) -> Result<Data> {
        self.check_memory(&problem)?;
        let seed = self.locations.seed;
        let t = problem.types();
        let ring = problem.layout() == Layout::PlanarRing;
        let inside = ring.then(|| inside_levels(&problem));
        let (d, positions) = (problem.channels(), problem.positions());
        let normal = |len, seed: u64| {
            rows(t.value, len, d, |row| {
                let mut r = Rng::new(seed ^ (row << 24));
                (0..d).map(|_| r.normal()).collect()
            })
        };
        let mut value = normal(problem.value_len(), seed);
        if let Some(inside) = inside {
            let mut elements = value.as_mut();
            for i in 0..problem.value_len() {
                if !inside[(i / d) % positions] {
                    elements.set(i, 0.0);
                }
            }
        }
        static MADE: AtomicU64 = AtomicU64::new(1);
        Ok(Data {
            id: MADE.fetch_add(1, Ordering::Relaxed),
            value,
            locations: self.locations.generate(&problem),
            weights: self.weights(&problem),
            grad_output: normal(problem.output_len(), seed + 2),
            problem,
        })
    }

    /// Refuses data that does not fit into memory, before any is made.
    fn check_memory(&self, p: &Problem) -> Result<()> {
        // Numbers are made in f32, kept in their own type, and results take as much again.
        let numbers = [p.value_len(), p.locations_len(), p.weights_len(), p.output_len()];
        let gib = numbers.iter().map(|&n| n as f64).sum::<f64>() * 16.0 / (1u64 << 30) as f64;
        let have = crate::machine::memory_gib();
        ensure!(
            have == 0.0 || gib < have,
            "memory for workload {}: got {have} GiB, expected at least {gib:.1} GiB",
            self.name
        );
        Ok(())
    }

    /// Attention weights: positive, with the sum 1 for each query and head.
    fn weights(&self, p: &Problem) -> Buffer {
        rows(p.types().weights, p.weights_len(), p.samples(), |row| {
            let mut r = Rng::new(self.locations.seed + 1 + (row << 20));
            let e: Vec<f64> = (0..p.samples()).map(|_| r.normal().exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(|x| x / sum).collect()
        })
    }
}

/// The tensors of a workload.
#[derive(Debug, Clone)]
pub struct Data {
    /// A number that no other data of this process has, even if it reuses the same memory.
    pub id: u64,
    /// The problem.
    pub problem: Problem,
    /// The value pyramid.
    pub value: Buffer,
    /// Sampling locations.
    pub locations: Buffer,
    /// Attention weights.
    pub weights: Buffer,
    /// The gradient of the output, for the backward pass.
    pub grad_output: Buffer,
}

/// Rows of `inner` numbers, rounded to `f32`. They are made in parallel, so each row must have its
/// own generator.
fn rows(dtype: Dtype, len: usize, inner: usize, row: impl Fn(u64) -> Vec<f64> + Sync) -> Buffer {
    let numbers: Vec<f32> = (0..len.div_ceil(inner.max(1)) as u64)
        .into_par_iter()
        .flat_map_iter(|i| row(i).into_iter().map(|x| x as f32))
        .collect();
    Buffer::from_fn(dtype, len, |i| f64::from(numbers[i]))
}

/// Whether each position belongs to a level, and not to a ring.
fn inside_levels(p: &Problem) -> Vec<bool> {
    let mut inside = vec![false; p.positions()];
    for level in p.levels() {
        for y in 0..level.h {
            inside[level.position(y, 0)..level.position(y, 0) + level.w].fill(true);
        }
    }
    inside
}

impl Locations {
    fn generate(&self, p: &Problem) -> Buffer {
        let (queries, heads, samples) = (p.queries(), p.heads(), p.samples());
        rows(p.types().locations, p.locations_len(), heads * samples * 2, |pair| {
            let mut r = Rng::new(self.seed ^ 0xface ^ (pair << 16));
            let mut out = Vec::new();
            let reference = self.reference(p, pair as usize / queries, pair as usize % queries);
            for head in 0..heads {
                // Each head has its own direction, as in a newly initialised model.
                let angle = std::f64::consts::TAU * head as f64 / heads as f64;
                for (level, &points) in p.levels().iter().zip(p.points()) {
                    for point in 0..points {
                        let far = (point + 1) as f64;
                        let step = [
                            angle.cos() * far + self.spread * r.normal(),
                            angle.sin() * far + self.spread * r.normal(),
                        ];
                        let mut at = match self.kind {
                            Distribution::Uniform => [r.unit(), r.unit()],
                            Distribution::Point => [0.51, 0.51],
                            _ => [
                                reference[0] + step[0] / level.w as f64,
                                reference[1] + step[1] / level.h as f64,
                            ],
                        };
                        if self.outside > 0.0 && r.unit() < self.outside {
                            at[r.below(2)] = r.pick(&[-1.0, 1.0]) * r.between(1.1, 3.0) + 0.5;
                        }
                        out.extend(at);
                    }
                }
            }
            out
        })
    }

    /// The reference point of a query.
    fn reference(&self, p: &Problem, image: usize, query: usize) -> [f64; 2] {
        let mut r = Rng::new(self.seed ^ 0xbeef ^ ((image * p.queries() + query) as u64) << 8);
        let random = [r.unit(), r.unit()];
        if self.kind == Distribution::Clustered {
            let mut centre = Rng::new(self.seed ^ ((image * 16 + r.below(8)) as u64) << 40);
            return [centre.unit(), centre.unit()].map(|x| x + 0.05 * r.normal());
        }
        match self.references {
            References::Random => random,
            References::Pixels => {
                let mut first = 0;
                for level in p.levels() {
                    let i = query - first;
                    if i < level.h * level.w {
                        let (y, x) = (i / level.w, i % level.w);
                        return [(x as f64 + 0.5) / level.w as f64, (y as f64 + 0.5) / level.h as f64];
                    }
                    first += level.h * level.w;
                }
                random
            }
            References::Grid => {
                let aspect = p.levels()[0].w as f64 / p.levels()[0].h as f64;
                let columns = (p.queries() as f64 * aspect).sqrt().ceil().max(1.0) as usize;
                let rows = p.queries().div_ceil(columns).max(1);
                let (y, x) = (query / columns, query % columns);
                [(x as f64 + 0.5) / columns as f64, (y as f64 + 0.5) / rows as f64]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_workload_is_legal() {
        for (name, text) in BUILT_IN {
            let w = Workload::parse(name, text).unwrap();
            for &dtype in &w.dtypes {
                w.problem(dtype).unwrap();
            }
        }
        assert_eq!(Workload::find("seed").unwrap().problem(Dtype::F16).unwrap().output_len(), 23_688_192);
    }

    #[test]
    fn data_is_the_same_every_time_and_falls_where_it_should() {
        let w = Workload::find("small").unwrap();
        let (a, b) = (w.data(Dtype::F32).unwrap(), w.data(Dtype::F32).unwrap());
        assert_eq!(a.locations.to_f64(), b.locations.to_f64());
        assert_eq!(a.value.to_f64(), b.value.to_f64());
        let weights = a.weights.to_f64();
        let sum: f64 = weights[..a.problem.samples()].iter().sum();
        assert!((sum - 1.0).abs() < 1e-6);
        let bev = Workload::find("bevformer-spatial").unwrap();
        let p = bev.problem(Dtype::F32).unwrap().with(|s| (s.batch, s.queries) = (1, 200)).unwrap();
        let locations = bev.locations.generate(&p).to_f64();
        let off = locations.chunks_exact(2).filter(|xy| xy.iter().any(|x| !(-0.5..1.5).contains(x))).count();
        let share = off as f64 / (locations.len() / 2) as f64;
        assert!((0.2..0.3).contains(&share), "{share} of the samples are off the image");
    }

    #[test]
    fn bad_workloads_say_what_is_wrong() {
        let text = BUILT_IN[0].1;
        let bad = |from: &str, to: &str| {
            format!("{:#}", Workload::parse("x", &text.replace(from, to)).expect_err("must be refused"))
        };
        for (from, to) in
            [("batch = ", "batch = -"), ("seed = ", "seed = -"), ("queries = 400", "queries = -1")]
        {
            let said = bad(from, to);
            assert!(said.contains("expected a whole number, 0 or more"), "{said}");
            assert!(
                said.ends_with("\nhint: crates/msda-bench/workloads/README.md describes the keys"),
                "{said}"
            );
        }
        assert!(bad("queries = 400", "queries = \"all\"").contains("expected a number or 'positions'"));
        assert!(bad("queries = 400", "querys = 400").contains("querys"));
        assert!(bad("\"grid\"", "\"pixels\"").contains("expected one for each of 960 pixels"));
        assert!(bad("points = 4", "points = [4]").contains("one for each"));
        assert!(format!("{:#}", Workload::find("nope").unwrap_err()).contains("seed-encoder"));
    }
}

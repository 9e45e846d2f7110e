//! An evaluation of the operator on tensors from files, with names and shapes as models save them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use msda::{
    Backend, Buffer, Gradients, Inputs, Layout, Padding, Problem, Reference, ReferenceKind, Sampling, Spec,
    Types, View, ViewMut,
};

use crate::files::{Data, Tensor};

/// The parameters that are not in the tensors.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Height and width of each level; empty to read them from `spatial_shapes`.
    pub levels: Vec<(usize, usize)>,
    /// Points per level; needed if they differ or the locations have no level dimension.
    pub points: Vec<usize>,
    /// The memory layout of `value`.
    pub layout: Layout,
    /// Bilinear or nearest sampling.
    pub sampling: Sampling,
    /// How samples outside the map are read.
    pub padding: Padding,
    /// Whether 0 and 1 are the centres of the corner pixels instead of the edges of the map.
    pub align_corners: bool,
}

/// The names of each tensor. The first one is used in messages.
const VALUE: &[&str] = &["value"];
const SHAPES: &[&str] = &["spatial_shapes", "value_spatial_shapes"];
const STARTS: &[&str] = &["level_start_index"];
const LOCATIONS: &[&str] = &["sampling_locations", "locations"];
const WEIGHTS: &[&str] = &["attention_weights", "weights"];
const REFERENCE: &[&str] = &["reference_points", "reference"];
const OFFSETS: &[&str] = &["sampling_offsets", "offsets"];
const LOGITS: &[&str] = &["attention_logits", "logits"];
const GRADIENT: &[&str] = &["grad_output"];

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A problem and the names of its tensors.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The problem.
    pub problem: Problem,
    value: &'a Buffer,
    locations: (&'a str, &'a Tensor),
    weights: (&'a str, &'a Tensor),
    reference: Option<(ReferenceKind, &'a Tensor)>,
    grad_output: Option<&'a Buffer>,
}

fn find<'a>(tensors: &'a Tensors, names: &[&'static str]) -> Option<(&'static str, &'a Tensor)> {
    names.iter().find_map(|n| tensors.get(*n).map(|t| (*n, t)))
}

fn need<'a>(tensors: &'a Tensors, names: &[&'static str]) -> Result<(&'static str, &'a Tensor)> {
    find(tensors, names).with_context(|| {
        let have: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let expected: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        let got = if have.is_empty() { "no tensor".into() } else { have.join(", ") };
        format!("tensor {}: not found, got {got}", expected.join(" or "))
    })
}

/// Refuses two tensors that are the same one by name: one of them would be ignored.
fn refuse_two_names(tensors: &Tensors) -> Result<()> {
    for names in [SHAPES, LOCATIONS, WEIGHTS, REFERENCE, OFFSETS, LOGITS] {
        let got: Vec<String> =
            names.iter().filter(|n| tensors.contains_key(**n)).map(|n| format!("'{n}'")).collect();
        ensure!(
            got.len() < 2,
            "tensors {}: got both, expected one: they are names of the same input",
            got.join(" and ")
        );
    }
    Ok(())
}

fn shape<'a, const N: usize>(name: &str, tensor: &'a Tensor, meaning: &str) -> Result<&'a [usize; N]> {
    tensor.shape.as_slice().try_into().ok().with_context(|| {
        format!("shape of {name}: got {:?}, expected {N} dimensions: {meaning}", tensor.shape)
    })
}

impl<'a> Evaluation<'a> {
    /// Derives the problem from names and shapes of tensors.
    pub fn new(tensors: &'a Tensors, options: &Options) -> Result<Self> {
        refuse_two_names(tensors)?;
        let (name, value) = need(tensors, VALUE)?;
        let &[batch, a, b, channels] = shape::<4>(name, value, "(B, S, H, D), or (B, H, S, D) when planar")?;
        let (positions, heads) = if options.layout == Layout::Bshd { (a, b) } else { (b, a) };
        let value = value.float(name)?;

        let fused = find(tensors, REFERENCE);
        let locations = need(tensors, if fused.is_some() { OFFSETS } else { LOCATIONS })?;
        let weights = need(tensors, if fused.is_some() { LOGITS } else { WEIGHTS })?;
        let levels = levels(tensors, options)?;
        let (queries, points) = samples(locations.0, locations.1, levels.len(), options)?;
        let reference = match fused {
            None => None,
            Some((name, t)) => {
                let &[b, q, l, dim] = shape::<4>(name, t, "(B, Q, L, 2 or 4)")?;
                let want = [batch, queries, levels.len()];
                ensure!(
                    [b, q, l] == want,
                    "shape of {name}: got {:?}, expected {want:?} and 2 or 4",
                    t.shape
                );
                let kind = match dim {
                    2 => ReferenceKind::Point,
                    4 => ReferenceKind::Box,
                    _ => bail!("last dimension of {name}: got {dim}, expected 2 (points) or 4 (boxes)"),
                };
                Some((kind, t))
            }
        };
        let starts = match find(tensors, STARTS) {
            None => None,
            Some((name, t)) => Some(sizes(name, t.ints(name)?)?),
        };
        let types = Types {
            value: value.dtype(),
            locations: locations.1.float(locations.0)?.dtype(),
            weights: weights.1.float(weights.0)?.dtype(),
        };
        // Consecutive levels cover the value exactly. Only explicit starts may leave gaps.
        let covered: usize = levels
            .iter()
            .map(|&(h, w)| (h + 2 * options.layout.ring()).saturating_mul(w + 2 * options.layout.ring()))
            .fold(0, usize::saturating_add);
        ensure!(
            starts.is_some() || covered == positions,
            "positions of value: got {positions} ({} {:?}), expected {covered}, the pixels of {levels:?}{}\n\
             hint: give level_start_index if the levels do not follow each other, and --layout if value is planar",
            if options.layout == Layout::Bshd { "(B, S, H, D) =" } else { "(B, H, S, D) =" },
            [batch, a, b, channels],
            if options.layout.ring() > 0 { " and of the ring of one pixel around each level" } else { "" },
        );
        let problem = Problem::new(Spec {
            batch,
            queries,
            heads,
            channels,
            levels,
            points,
            starts,
            positions: Some(positions),
            sampling: options.sampling,
            padding: options.padding,
            align_corners: options.align_corners,
            layout: options.layout,
            types,
        })?;
        // The operator checks lengths. A shape with the same length in another order is refused
        // here.
        let outer = &[batch, queries, heads];
        let got = locations.1.shape.get(..3).unwrap_or_default();
        ensure!(
            got == outer,
            "shape of {}: got {:?}, expected (B, Q, H) = {outer:?} first",
            locations.0,
            locations.1.shape
        );
        let (name, got) = (weights.0, &weights.1.shape);
        let by_level = &locations.1.shape[..locations.1.shape.len() - 1];
        let flat = [&outer[..], &[problem.samples()]].concat();
        ensure!(
            got == by_level || *got == flat,
            "shape of {name}: got {got:?}, expected {by_level:?} or {flat:?}"
        );
        let grad_output = match find(tensors, GRADIENT) {
            None => None,
            Some((name, t)) => {
                let (joined, split) = ([batch, queries, heads * channels], [batch, queries, heads, channels]);
                ensure!(
                    t.shape == joined || t.shape == split,
                    "shape of {name}: got {:?}, expected {joined:?} or {split:?}",
                    t.shape
                );
                Some(t.float(name)?)
            }
        };
        Ok(Self { problem, value, locations, weights, reference, grad_output })
    }

    fn inputs(&self) -> Result<Inputs<'a>> {
        let view =
            |(name, t): (&str, &'a Tensor)| Ok::<_, anyhow::Error>(View::from(t.float(name)?.as_slice()));
        Ok(Inputs {
            value: self.value.as_slice().into(),
            locations: view(self.locations)?,
            weights: view(self.weights)?,
            reference: match self.reference {
                None => None,
                Some((kind, t)) => Some(Reference { kind, view: view((REFERENCE[0], t))? }),
            },
        })
    }

    /// Names of `tensors` that this form does not read. They may be misspelt.
    pub fn unused<'t>(&self, tensors: &'t Tensors) -> Vec<&'t str> {
        let form = if self.reference.is_some() { [OFFSETS, LOGITS] } else { [LOCATIONS, WEIGHTS] };
        let read = [VALUE, SHAPES, STARTS, REFERENCE, GRADIENT, form[0], form[1]];
        let names = tensors.keys().map(String::as_str);
        names.filter(|name| !read.iter().any(|names| names.contains(name))).collect()
    }

    /// Whether gradients are computed too.
    pub fn wants_backward(&self) -> bool {
        self.grad_output.is_some()
    }

    /// Computes the output and, with `grad_output`, the gradients, each named `grad_` plus the name
    /// of the input.
    pub fn run(&self, backend: &dyn Backend) -> Result<Vec<(String, Tensor)>> {
        let (p, inputs) = (&self.problem, self.inputs()?);
        let t = p.types();
        let mut output = Buffer::try_filled(t.value, p.output_len(), 0.0)?;
        backend.forward(p, &inputs, output.as_mut().into())?;
        let shape = vec![p.batch(), p.queries(), p.heads() * p.channels()];
        let mut results = vec![("output".to_owned(), Tensor { shape, data: Data::Float(output) })];
        let Some(grad_output) = self.grad_output else { return Ok(results) };

        let like = |b: &Buffer| Buffer::filled(b.dtype(), b.len(), 0.0);
        let mut grads: Vec<(String, Vec<usize>, Buffer)> = Vec::new();
        let value_shape = match p.layout() {
            Layout::Bshd => vec![p.batch(), p.positions(), p.heads(), p.channels()],
            _ => vec![p.batch(), p.heads(), p.positions(), p.channels()],
        };
        grads.push(("grad_value".into(), value_shape, like(self.value)));
        for (name, tensor) in [self.locations, self.weights] {
            grads.push((format!("grad_{name}"), tensor.shape.clone(), like(tensor.float(name)?)));
        }
        if let Some((_, tensor)) = self.reference {
            let name = REFERENCE[0];
            grads.push((format!("grad_{name}"), tensor.shape.clone(), like(tensor.float(name)?)));
        }
        let mut views = grads.iter_mut().map(|(_, _, b)| ViewMut::from(b.as_mut()));
        let to = Gradients {
            value: views.next(),
            locations: views.next(),
            weights: views.next(),
            reference: views.next(),
        };
        backend.backward(p, &inputs, grad_output.as_slice().into(), to)?;
        results
            .extend(grads.into_iter().map(|(name, shape, b)| (name, Tensor { shape, data: Data::Float(b) })));
        Ok(results)
    }
}

fn sizes(name: &str, numbers: &[i64]) -> Result<Vec<usize>> {
    numbers
        .iter()
        .map(|&n| {
            usize::try_from(n).map_err(|_| anyhow!("{name}: got {n}, expected a number that is not negative"))
        })
        .collect()
}

fn levels(tensors: &Tensors, options: &Options) -> Result<Vec<(usize, usize)>> {
    let Some((name, t)) = find(tensors, SHAPES) else {
        if !options.levels.is_empty() {
            return Ok(options.levels.clone());
        }
        bail!(
            "levels: got no tensor '{}', expected one, or the levels as an option\nhint: --levels 92x160,46x80",
            SHAPES[0]
        );
    };
    let &[_, two] = shape::<2>(name, t, "(L, 2) as (height, width)")?;
    ensure!(two == 2, "shape of {name}: got {:?}, expected (L, 2)", t.shape);
    let numbers = sizes(name, t.ints(name)?)?;
    let levels: Vec<(usize, usize)> = numbers.chunks_exact(2).map(|c| (c[0], c[1])).collect();
    ensure!(
        options.levels.is_empty() || options.levels == levels,
        "levels: got {:?} as an option and {levels:?} from {name}, expected one of them, or the same",
        options.levels
    );
    Ok(levels)
}

/// Queries and points per level, from the shape of the locations.
fn samples(name: &str, t: &Tensor, levels: usize, options: &Options) -> Result<(usize, Vec<usize>)> {
    let (queries, points) = match t.shape.as_slice() {
        &[_, q, _, l, p, 2] => {
            ensure!(l == levels, "levels of {name}: got {l}, expected {levels}");
            (q, vec![p; l])
        }
        &[_, q, _, n, 2] => {
            ensure!(
                options.points.iter().sum::<usize>() == n,
                "points: got {:?}, expected {levels} numbers, one per level, with the sum {n} that {name} has\n\
                 hint: give them as --points P,P,...",
                options.points
            );
            (q, options.points.clone())
        }
        other => {
            bail!("shape of {name}: got {other:?}, expected (B, Q, H, L, P, 2) or (B, Q, H, sum of P, 2)")
        }
    };
    ensure!(
        options.points.is_empty() || options.points == points,
        "points: got {:?}, expected {points:?}, as in {name}",
        options.points
    );
    Ok((queries, points))
}

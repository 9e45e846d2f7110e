//! An evaluation of the operator on tensors from files, with names and shapes as models save them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use msda::{
    Backend, Buffer, Gradients, Inputs, Layout, Problem, Reference, ReferenceKind, Spec, Types, View, ViewMut,
};

use crate::files::{Data, Tensor};

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

/// A tensor and the name that it was found by.
type Named<'a> = (&'static str, &'a Tensor);

/// A problem and its tensors.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The problem.
    pub problem: Problem,
    inputs: Inputs<'a>,
    /// Value, locations, weights and, in the fused form, reference points.
    named: Vec<Named<'a>>,
    grad_output: Option<&'a Buffer>,
}

fn find<'a>(tensors: &'a Tensors, names: &[&'static str]) -> Option<Named<'a>> {
    names.iter().find_map(|n| tensors.get(*n).map(|t| (*n, t)))
}

fn need<'a>(tensors: &'a Tensors, names: &[&'static str]) -> Result<Named<'a>> {
    find(tensors, names).with_context(|| {
        let have: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let expected: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        let got = if have.is_empty() { "no tensor".into() } else { have.join(", ") };
        format!(
            "tensor {}: not found, got {got}\n\
             hint: an .npy file has the name of its tensor: {}.npy; `msda run --help` lists all names",
            expected.join(" or "),
            names[0]
        )
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

/// Sizes by letter. The first tensor whose shape has a letter sets it.
#[derive(Default)]
struct Sizes(BTreeMap<&'static str, usize>);

impl Sizes {
    /// Compares a shape with the form that has as many dimensions and the same numbers.
    fn bind(&mut self, (name, tensor): Named<'_>, forms: &[&'static str]) -> Result<()> {
        let got = &tensor.shape;
        let fits = |form: &&&str| {
            let same =
                |(word, size): (&str, &usize)| word.parse().map_or(true, |number: usize| number == *size);
            form.split(", ").count() == got.len() && form.split(", ").zip(got).all(same)
        };
        let Some(form) = forms.iter().find(fits) else {
            bail!("shape of {name}: got {got:?}, expected ({})", forms.join(") or ("));
        };
        for (word, &size) in form.split(", ").zip(got) {
            let expected = *self.0.entry(word).or_insert(size);
            ensure!(
                size == expected,
                "shape of {name}: got {got:?}, expected ({form}) with {word} = {expected}{}",
                if word == "H" {
                    "\nhint: H comes from value; --layout says which of its dimensions that is"
                } else {
                    ""
                }
            );
        }
        Ok(())
    }
}

impl<'a> Evaluation<'a> {
    /// Derives the problem from names and shapes of tensors, and from options: layout, sampling,
    /// padding and `align_corners`; the levels if there is no tensor with them; the points of each
    /// level if they differ or the locations have no level dimension.
    pub fn new(tensors: &'a Tensors, options: &Spec) -> Result<Self> {
        refuse_two_names(tensors)?;
        let mut sizes = Sizes::default();
        let value = need(tensors, VALUE)?;
        let by_position = options.layout == Layout::Bshd;
        let form = if by_position { "B, S, H, D" } else { "B, H, S, D" };
        sizes.bind(value, &[form])?;
        let reference = find(tensors, REFERENCE);
        let locations = need(tensors, if reference.is_some() { OFFSETS } else { LOCATIONS })?;
        let weights = need(tensors, if reference.is_some() { LOGITS } else { WEIGHTS })?;
        let levels = levels(tensors, options)?;
        sizes.0.insert("L", levels.len());
        sizes.bind(locations, &["B, Q, H, L, P, 2", "B, Q, H, N, 2"])?;
        let points = points(locations.0, &sizes, options)?;
        sizes.0.insert("N", points.iter().sum());
        let by_level = ["B, Q, H, N", "B, Q, H, L, P"];
        sizes.bind(weights, if sizes.0.contains_key("P") { &by_level } else { &by_level[..1] })?;
        if let Some(reference) = reference {
            sizes.bind(reference, &["B, Q, L, 2", "B, Q, L, 4"])?;
        }
        let starts = find(tensors, STARTS);
        if let Some(starts) = starts {
            sizes.bind(starts, &["L"])?;
        }
        let [batch, queries, heads, channels, positions] =
            ["B", "Q", "H", "D", "S"].map(|word| sizes.0[word]);
        let grad_output = find(tensors, GRADIENT);
        sizes.0.insert("H * D", heads * channels);
        if let Some(grad_output) = grad_output {
            sizes.bind(grad_output, &["B, Q, H * D", "B, Q, H, D"])?;
        }
        let float = |(name, tensor): Named<'a>| tensor.float(name);
        let view = |named: Named<'a>| msda::Result::Ok(View::from(float(named)?.as_slice()));
        let inputs = Inputs {
            value: view(value)?,
            locations: view(locations)?,
            weights: view(weights)?,
            reference: match reference {
                None => None,
                Some(named) => {
                    let boxes = named.1.shape.last() == Some(&4);
                    let kind = if boxes { ReferenceKind::Box } else { ReferenceKind::Point };
                    Some(Reference { kind, view: view(named)? })
                }
            },
        };
        // Consecutive levels cover the value exactly. Only explicit starts may leave gaps.
        let covered: usize = levels
            .iter()
            .map(|&(h, w)| (h + 2 * options.layout.ring()).saturating_mul(w + 2 * options.layout.ring()))
            .fold(0, usize::saturating_add);
        ensure!(
            starts.is_some() || covered == positions,
            "positions of value: got {positions} (({form}) = {:?}), expected {covered}, the pixels of {levels:?}{}\n\
             hint: give level_start_index if the levels do not follow each other, and --layout if value is planar",
            value.1.shape,
            if options.layout.ring() > 0 { " and of the ring of one pixel around each level" } else { "" },
        );
        let problem = Problem::new(Spec {
            batch,
            queries,
            heads,
            channels,
            levels,
            points,
            starts: starts.map(whole).transpose()?,
            positions: Some(positions),
            types: Types {
                value: float(value)?.dtype(),
                locations: float(locations)?.dtype(),
                weights: float(weights)?.dtype(),
            },
            ..options.clone()
        })?;
        let named = [value, locations, weights].into_iter().chain(reference).collect();
        Ok(Self { problem, inputs, named, grad_output: grad_output.map(float).transpose()? })
    }

    /// Names of `tensors` that this form does not read. They may be misspelt.
    pub fn unused<'t>(&self, tensors: &'t Tensors) -> Vec<&'t str> {
        let form = if self.inputs.reference.is_some() { [OFFSETS, LOGITS] } else { [LOCATIONS, WEIGHTS] };
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
        let p = &self.problem;
        let mut output = Buffer::try_filled(p.types().value, p.output_len(), 0.0)?;
        backend.forward(p, &self.inputs, output.as_mut().into())?;
        let shape = vec![p.batch(), p.queries(), p.heads() * p.channels()];
        let mut results = vec![("output".to_owned(), Tensor { shape, data: Data::Float(output) })];
        let Some(grad_output) = self.grad_output else { return Ok(results) };

        let like = |&(name, tensor): &Named<'_>| {
            let input = tensor.float(name)?;
            Ok(Buffer::filled(input.dtype(), input.len(), 0.0))
        };
        let mut grads = self.named.iter().map(like).collect::<Result<Vec<Buffer>>>()?;
        let mut views = grads.iter_mut().map(|b| ViewMut::from(b.as_mut()));
        let to = Gradients {
            value: views.next(),
            locations: views.next(),
            weights: views.next(),
            reference: views.next(),
        };
        backend.backward(p, &self.inputs, grad_output.as_slice().into(), to)?;
        results.extend(self.named.iter().zip(grads).map(|((name, input), grad)| {
            (format!("grad_{name}"), Tensor { shape: input.shape.clone(), data: Data::Float(grad) })
        }));
        Ok(results)
    }
}

/// The numbers of a tensor as sizes.
fn whole((name, tensor): Named<'_>) -> Result<Vec<usize>> {
    let size = |&n: &i64| {
        usize::try_from(n).map_err(|_| anyhow!("{name}: got {n}, expected a number that is not negative"))
    };
    tensor.ints(name)?.iter().map(size).collect()
}

fn levels(tensors: &Tensors, options: &Spec) -> Result<Vec<(usize, usize)>> {
    let Some((name, t)) = find(tensors, SHAPES) else {
        if !options.levels.is_empty() {
            return Ok(options.levels.clone());
        }
        bail!(
            "levels: got no tensor '{}', expected one, or the levels as an option\nhint: --levels 92x160,46x80",
            SHAPES[0]
        );
    };
    Sizes::default().bind((name, t), &["L, 2"])?;
    let levels: Vec<(usize, usize)> = whole((name, t))?.chunks_exact(2).map(|c| (c[0], c[1])).collect();
    ensure!(
        options.levels.is_empty() || options.levels == levels,
        "levels: got {:?} as an option and {levels:?} from {name}, expected one of them, or the same",
        options.levels
    );
    Ok(levels)
}

/// Points per level, from the shape of the locations or the option.
fn points(name: &str, sizes: &Sizes, options: &Spec) -> Result<Vec<usize>> {
    let levels = sizes.0["L"];
    let Some(&each) = sizes.0.get("P") else {
        let n = sizes.0["N"];
        ensure!(
            options.points.iter().sum::<usize>() == n,
            "points: got {:?}, expected {levels} numbers, one per level, with the sum {n} that {name} has\n\
             hint: give them as --points P,P,...",
            options.points
        );
        return Ok(options.points.clone());
    };
    let points = vec![each; levels];
    ensure!(
        options.points.is_empty() || options.points == points,
        "points: got {:?}, expected {points:?}, as in {name}",
        options.points
    );
    Ok(points)
}

//! Other implementations, described in TOML and called through torch's Python.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use msda::{Dtype, Layout, Padding, Problem, Sampling};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use super::python::Python;
use crate::Unknown;
use crate::files::cannot;
use crate::record::{Device, Pass};

/// The peers that are built in.
pub const BUILT_IN: &str = include_str!("../../engines.toml");

/// The prefix of peers' engine names.
pub const PREFIX: &str = "peer:";

/// A peer: a Python module and how to call it. `engines.toml` describes each key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name, without the prefix.
    #[serde(skip)]
    pub name: String,
    /// One line of description.
    pub about: String,
    /// The module.
    pub import: String,
    /// Statements that run once.
    #[serde(default)]
    pub setup: String,
    /// Statements that run before every run, not timed.
    #[serde(default)]
    pub prepare: String,
    /// The expression that is timed.
    pub call: String,
    /// Statements that run after a backward pass that is checked, not timed.
    #[serde(default)]
    pub finish: String,
    /// Where it computes.
    pub device: Device,
    /// The value types it takes.
    #[serde(deserialize_with = "dtypes")]
    pub dtypes: Vec<Dtype>,
    /// Whether it has gradients.
    #[serde(default)]
    pub backward: bool,
    /// Whether its result must be within the tolerance. Without it: not for 16-bit values.
    #[serde(default)]
    pub exact: Option<bool>,
}

/// Reads the names of types: at least one.
pub(crate) fn dtypes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Dtype>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    if names.is_empty() {
        return Err(de::Error::custom("dtypes: got none, expected at least one"));
    }
    names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
}

impl Peer {
    /// Its name as an engine.
    pub fn engine(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The request that makes Python import it.
    pub(super) fn request(&self) -> Value {
        let Self { import, setup, prepare, call, finish, .. } = self;
        json!({ "import": import, "setup": setup, "prepare": prepare, "call": call, "finish": finish })
    }

    /// The reason why it does not take a problem, if there is one.
    pub fn refuses(&self, p: &Problem, pass: Pass) -> Option<String> {
        let dtype = p.types().value;
        let mut next = 0;
        let packed = p.levels().iter().all(|l| {
            let here = l.origin == next && l.pitch == l.w;
            next += l.h * l.w;
            here
        });
        let refused = [
            (!self.dtypes.contains(&dtype), format!("values of type {dtype}")),
            (pass == Pass::Backward && !self.backward, "the backward pass".into()),
            (
                p.points().windows(2).any(|w| w[0] != w[1]),
                "a different number of points on each level".into(),
            ),
            (p.layout() != Layout::Bshd, format!("the {} layout", p.layout().name())),
            (!packed || next != p.positions(), "levels that are not packed".into()),
            (p.sampling() != Sampling::Bilinear, "nearest sampling".into()),
            (p.padding() != Padding::Zeros, "border padding".into()),
            (p.spec().align_corners, "align_corners".into()),
        ];
        let found = refused.into_iter().find(|(refused, _)| *refused);
        found.map(|(_, what)| format!("{} is not called with {what}", self.engine()))
    }
}

/// The peers that a TOML text describes, sorted by name.
pub fn parse(text: &str) -> Result<Vec<Peer>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        peer: BTreeMap<String, Peer>,
    }
    let file: File = toml::from_str(text)?;
    let named = |(name, peer): (String, Peer)| {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(legal) {
            bail!("peer: got the name '{name}', expected letters, digits, '-', '_' and '.'");
        }
        Ok(Peer { name, ..peer })
    };
    file.peer.into_iter().map(named).collect()
}

/// All peers: the built-in ones, and those of the file that `MSDA_ENGINES` names, which replace
/// built-in ones of the same name.
pub fn load() -> Result<Vec<Peer>> {
    let built_in = parse(BUILT_IN).context("in the engines.toml of this program")?;
    let path = std::env::var_os("MSDA_ENGINES").filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(path) = path else { return Ok(built_in) };
    let text = std::fs::read_to_string(&path).map_err(|why| cannot("read", &path, why))?;
    let own = parse(&text).with_context(|| format!("in {}", path.display()))?;
    Ok(joined(built_in, own))
}

fn joined(built_in: Vec<Peer>, own: Vec<Peer>) -> Vec<Peer> {
    let all = built_in.into_iter().chain(own);
    all.map(|peer| (peer.name.clone(), peer)).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// The peer with this name, with or without the prefix.
pub fn find(name: &str) -> Result<Peer> {
    let bare = name.strip_prefix(PREFIX).unwrap_or(name);
    let peers = load()?;
    let names: Vec<String> = peers.iter().map(Peer::engine).collect();
    peers.into_iter().find(|peer| peer.name == bare).ok_or_else(|| {
        let others = ", or a peer of the file that MSDA_ENGINES names";
        Unknown::or("engine", &format!("{PREFIX}{bare}"), &names, others).into()
    })
}

/// Imports each peer's module. The answer has the reason of each failure.
pub fn survey(peers: &[Peer]) -> Result<Vec<Option<String>>> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let mut python = Python::start(1, Device::Cpu)?;
    let mut missing = Vec::new();
    for peer in peers {
        // The import before this one may have ended the process.
        let started =
            if python.alive { Ok(()) } else { Python::start(1, Device::Cpu).map(|new| python = new) };
        let imported = started.and_then(|()| python.ask(&peer.request()));
        missing.push(imported.err().map(|why| format!("{why:#}")));
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_peers_parse_and_refuse_what_they_do_not_take() {
        let peers = parse(BUILT_IN).unwrap();
        let names: Vec<&str> = peers.iter().map(|p| p.name.as_str()).collect();
        let expected = ["dcnv4", "dcnv4-safe", "hub", "mmcv", "original", "torch-ms-deform-attn"];
        let others = ["torch-ms-deform-attn-cpu", "triton", "triton-query-block"];
        assert_eq!(names, [&expected[..], &others].concat());
        let p = crate::workload::Workload::find("small").unwrap().problem(Dtype::F32).unwrap();
        let mmcv = peers.iter().find(|p| p.name == "mmcv").unwrap();
        assert_eq!(mmcv.refuses(&p, Pass::Backward), None);
        type Change = fn(&mut msda::Spec);
        let refused: [(Change, &str); 7] = [
            (|s| s.points = vec![4, 3], "points"),
            (|s| s.layout = Layout::Planar, "planar"),
            (|s| s.starts = Some(vec![0, 1000]), "packed"),
            (|s| s.sampling = Sampling::Nearest, "nearest"),
            (|s| s.padding = Padding::Border, "border"),
            (|s| s.align_corners = true, "align_corners"),
            (|s| s.types = msda::Types::uniform(Dtype::F64), "f64"),
        ];
        for (change, word) in refused {
            let why = mmcv.refuses(&p.with(change).unwrap(), Pass::Forward).expect(word);
            assert!(why.contains(word), "{why}");
        }
        let forward_only = Peer { backward: false, ..mmcv.clone() };
        assert!(forward_only.refuses(&p, Pass::Backward).is_some_and(|why| why.contains("backward")));
    }

    /// Packages of one import name are told apart by a module that only one of them has.
    #[test]
    fn the_two_triton_packages_are_told_apart() {
        let peers = parse(BUILT_IN).unwrap();
        let imports: Vec<&str> =
            peers.iter().filter(|p| p.name.starts_with("triton")).map(|p| p.import.as_str()).collect();
        assert_eq!(imports, ["msda_triton.frontend", "msda_triton.ops"]);
    }

    #[test]
    fn entries_of_the_user_replace_and_add() {
        let built_in = parse(BUILT_IN).unwrap();
        let mine = Peer { name: "mine".into(), ..built_in[0].clone() };
        let triton = Peer { name: "triton".into(), about: "another".into(), ..built_in[0].clone() };
        let all = joined(built_in.clone(), vec![mine, triton]);
        assert_eq!(all.len(), built_in.len() + 1);
        assert!(all.iter().any(|p| p.engine() == "peer:mine"));
        assert!(all.iter().any(|p| p.name == "triton" && p.about == "another"));
    }

    #[test]
    fn a_malformed_file_says_where() {
        let good = "[peer.a]\nabout = \"x\"\nimport = \"m\"\ncall = \"f(value)\"\ndevice = \"cpu\"\ndtypes = [\"f32\"]\n";
        assert_eq!(parse(good).unwrap()[0].exact, None);
        for (from, to, line, word) in [
            ("about", "abuot", "line 2", "unknown field"),
            ("\"cpu\"", "\"tpu\"", "line 5", "tpu"),
            ("\"f32\"", "\"f33\"", "line 6", "f33"),
            ("[\"f32\"]", "[]", "line 6", "at least one"),
            ("call = ", "call ", "line 4", "expected"),
            ("call = \"f(value)\"\n", "", "line 1", "missing field"),
            ("[peer.a]", "[peers.a]", "line 1", "unknown field"),
        ] {
            let text = format!("{:#}", parse(&good.replace(from, to)).expect_err(to));
            assert!(text.contains(line) && text.contains(word), "{to}: {text}");
        }
        assert!(format!("{:#}", parse(&good.replace("peer.a", "peer.\"a b\"")).unwrap_err()).contains("a b"));
    }
}

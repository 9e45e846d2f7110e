//! Snapshots of the compiled kernels: one text file per architecture, one line per kernel.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// The columns.
pub(crate) const COLUMNS: [&str; 15] = [
    "regs", "spills", "stack", "shared", "instrs", "ldg128", "ldg64", "ldg32", "ldg16", "lds", "sts", "shfl",
    "hadd2", "ffma", "imad",
];

/// Bytes of local memory that another compiler version may use more.
const SLACK: usize = 64;

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) numbers: [usize; COLUMNS.len()],
}

impl Row {
    /// A number by its column.
    pub(crate) fn get(&self, column: &str) -> usize {
        COLUMNS.iter().position(|name| *name == column).map_or(0, |i| self.numbers[i])
    }

    /// Whether this is the same code. NVRTC is not quite deterministic: if it compiles several
    /// kernels at the same time, one may have a few moves more or less (an `IMAD` can be a move).
    /// All other numbers must be equal.
    fn is_like(&self, other: &Self) -> bool {
        let near = |(i, (&a, &b)): (usize, (&usize, &usize))| {
            let slack = match COLUMNS[i] {
                "instrs" => a / 32 + 8,
                "imad" => a / 8 + 8,
                _ => 0,
            };
            a.abs_diff(b) <= slack
        };
        (&self.name, &self.key) == (&other.name, &other.key)
            && self.numbers.iter().zip(&other.numbers).enumerate().all(near)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (name, key) = (words.next()?.to_owned(), words.next()?.to_owned());
        let numbers: Vec<usize> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some(Self { name, key, numbers: numbers.try_into().ok()? })
    }
}

/// All kernels of an architecture, and the compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) compiler: String,
    pub(crate) rows: Vec<Row>,
}

impl Snapshot {
    /// The file of an architecture.
    pub(crate) fn path(arch: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests/snapshots", &format!("{arch}.txt")].iter().collect()
    }

    /// Reads what [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let compiler = lines.next().ok_or("it is empty")?.to_owned();
        let rows = lines.skip(1).map(|line| Row::parse(line).ok_or_else(|| format!("cannot read '{line}'")));
        Ok(Self { compiler, rows: rows.collect::<Result<_, _>>()? })
    }

    /// All differences, as lines that begin with `-` (recorded) and `+` (now).
    pub(crate) fn difference(&self, now: &Self) -> String {
        let find = |rows: &[Row], name: &str| rows.iter().find(|row| row.name == name).cloned();
        let mut out = String::new();
        for old in &self.rows {
            let new = find(&now.rows, &old.name);
            if !new.as_ref().is_some_and(|new| old.is_like(new)) {
                let _ = writeln!(out, "- {}", Line(old, [0, 0]));
                let _ = new.map(|new| writeln!(out, "+ {}", Line(&new, [0, 0])));
            }
        }
        for new in now.rows.iter().filter(|new| find(&self.rows, &new.name).is_none()) {
            let _ = writeln!(out, "+ {}", Line(new, [0, 0]));
        }
        if out.is_empty() { out } else { format!("  name key {}\n{out}", COLUMNS.join(" ")) }
    }

    /// The limits that hold for any compiler version: hardly more local memory than recorded, and
    /// 128-bit loads if there were some.
    pub(crate) fn limits(&self, now: &Self, disassembled: bool) -> Vec<String> {
        let mut broken = Vec::new();
        for old in &self.rows {
            let Some(new) = now.rows.iter().find(|row| row.name == old.name) else { continue };
            for column in ["spills", "stack"].into_iter().filter(|c| new.get(c) > old.get(c) + SLACK) {
                broken.push(format!(
                    "{}: {column} {}, recorded {}",
                    old.name,
                    new.get(column),
                    old.get(column)
                ));
            }
            if disassembled && old.get("ldg128") > 0 && new.get("ldg128") == 0 {
                broken.push(format!("{}: no loads of 128 bits, recorded {}", old.name, old.get("ldg128")));
            }
        }
        broken
    }
}

/// A row, its name and key in columns of these widths.
struct Line<'a>(&'a Row, [usize; 2]);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(row, [name, key]) = self;
        write!(f, "{:name$}  {:key$}", row.name, row.key)?;
        COLUMNS.iter().zip(row.numbers).try_for_each(|(column, n)| write!(f, " {n:>0$}", column.len().max(4)))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |part: fn(&Row) -> &String| self.rows.iter().map(|row| part(row).len()).max().unwrap_or(0);
        let widths @ [name, key] = [width(|row| &row.name), width(|row| &row.key)];
        writeln!(f, "{}", self.compiler)?;
        write!(f, "{:name$}  {:key$}", "name", "key")?;
        COLUMNS.iter().try_for_each(|column| write!(f, " {column:>4}"))?;
        writeln!(f)?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", Line(row, widths)))
    }
}

#[test]
fn differences_are_noticed() {
    let row =
        |name: &str, n| Row { name: name.into(), key: "streaming-d32".into(), numbers: [n; COLUMNS.len()] };
    let recorded = Snapshot { compiler: "NVRTC 13.2".into(), rows: vec![row("a", 1), row("bee", 20)] };
    assert_eq!(Snapshot::parse(&recorded.to_string()), Ok(recorded.clone()));
    assert_eq!(recorded.difference(&recorded), "");
    let now = Snapshot { rows: vec![row("a", 2), row("c", 1)], ..recorded.clone() };
    let signs: Vec<_> = recorded.difference(&now).lines().map(|line| line[..3].to_owned()).collect();
    assert_eq!(signs, ["  n", "- a", "+ a", "- b", "+ c"]);
    let [instrs, regs] = ["instrs", "regs"].map(|name| COLUMNS.iter().position(|c| *c == name).unwrap());
    let mut moved = recorded.clone();
    moved.rows[1].numbers[instrs] += 8;
    assert_eq!(recorded.difference(&moved), "");
    moved.rows[1].numbers[regs] += 1;
    assert_ne!(recorded.difference(&moved), "");
    assert_eq!(recorded.limits(&now, true), Vec::<String>::new());
    let worse = Snapshot { rows: vec![row("a", 2 + SLACK)], ..recorded.clone() };
    assert_eq!(recorded.limits(&worse, true).len(), 2);
    assert_eq!(now.limits(&recorded, true), Vec::<String>::new());
    let narrow = Snapshot { rows: vec![row("a", 0)], ..recorded.clone() };
    assert_eq!((recorded.limits(&narrow, true).len(), recorded.limits(&narrow, false).len()), (1, 0));
    for bad in ["", "NVRTC 13.2\nhead\na b 1 2\n", "NVRTC 13.2\nhead\na b x\n"] {
        assert!(Snapshot::parse(bad).is_err(), "{bad}");
    }
}

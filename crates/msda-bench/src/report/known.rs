//! Figures of probes and analyses, grouped by machine.

use super::names;
use crate::record::{Figure, Record};

/// The figures of a machine.
pub struct Known {
    /// The name of its GPU, or of its processor if it has no GPU.
    pub machine: String,
    /// Its figures in the order of the records. If two have the same name, the newer one counts.
    pub figures: Vec<Figure>,
}

/// The figures of all records whose names begin with a prefix.
pub fn known(records: &[Record], prefix: &str) -> Vec<Known> {
    let mut oldest_first: Vec<&Record> = records.iter().collect();
    oldest_first.sort_by(|a, b| a.created.cmp(&b.created));
    let mut all: Vec<Known> = Vec::new();
    for record in oldest_first {
        let own = |f: &&Figure| f.name.starts_with(prefix) && f.value.is_finite();
        let machine = machine(record);
        for figure in record.figures.iter().filter(own) {
            let at = all.iter().position(|k| k.machine == machine).unwrap_or_else(|| {
                all.push(Known { machine: machine.clone(), figures: Vec::new() });
                all.len() - 1
            });
            let figures = &mut all[at].figures;
            match figures.iter_mut().find(|f| f.name == figure.name) {
                Some(older) => older.clone_from(figure),
                None => figures.push(figure.clone()),
            }
        }
    }
    all
}

/// The name of a record's machine: its GPU, or its processor and the number of logical processors.
pub fn machine(record: &Record) -> String {
    let m = &record.machine;
    m.gpu.as_ref().map_or_else(|| names::cpu(m), |gpu| gpu.name.clone())
}

impl Known {
    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.name == name).map(|f| f.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Machine;

    #[test]
    fn the_newest_figure_of_a_machine_counts() {
        let record = |created: &str, cpu: &str, value| Record {
            created: created.into(),
            figures: [("probe.x", value), ("probe.none", f64::NAN), ("other.y", 1.0)]
                .map(|(name, value)| Figure { name: name.into(), value, unit: String::new() })
                .into(),
            ..Record::new("", Machine { cpu: cpu.into(), ..Machine::default() })
        };
        let all = [record("2026-03", "a", 3.0), record("2026-01", "a", 1.0), record("2026-02", "b", 2.0)];
        let known = known(&all, "probe.");
        let of = |machine: &str| known.iter().find(|k| k.machine.starts_with(machine)).unwrap();
        assert_eq!((of("a").figures.len(), of("a").get("probe.x")), (1, Some(3.0)));
        assert_eq!(of("b").get("probe.x"), Some(2.0));
    }
}

//! Compiled units and what the compiler reports about them.

/// A compiled unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The cubin.
    pub cubin: Vec<u8>,
    /// The output of the compiler.
    pub log: String,
    /// The source, with options and macros at the top.
    pub source: String,
    /// The compiler, such as `NVRTC 13.0 of 104857600 bytes`.
    pub compiler: String,
}

/// The resources of a kernel, as the compiler reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// The kernel's name.
    pub entry: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of registers per thread that are spilled to local memory.
    pub spill_stores: u32,
    /// Bytes per thread that are loaded back.
    pub spill_loads: u32,
    /// Bytes of stack per thread.
    pub stack: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

impl Compiled {
    /// The resources of each kernel, in the order of the log.
    pub fn resources(&self) -> Vec<Resources> {
        let mut all: Vec<Resources> = Vec::new();
        for line in self.log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let entry = rest.split('\'').next().unwrap_or(rest).to_owned();
                all.push(Resources { entry, ..Resources::default() });
            } else if let Some(last) = all.last_mut() {
                last.read(line);
            }
        }
        all
    }

    /// Registers per thread, the largest of all kernels.
    pub fn registers(&self) -> u32 {
        self.largest(|used| used.registers)
    }

    /// Bytes per thread that are spilled or loaded back, the largest of all kernels.
    pub fn spills(&self) -> u32 {
        self.largest(|used| used.spill_stores + used.spill_loads)
    }

    /// Bytes of stack per thread, the largest of all kernels.
    pub fn stack(&self) -> u32 {
        self.largest(|used| used.stack)
    }

    /// Bytes of static shared memory per block, the largest of all kernels.
    pub fn shared(&self) -> u32 {
        self.largest(|used| used.shared)
    }

    fn largest(&self, number: impl Fn(&Resources) -> u32) -> u32 {
        self.resources().iter().map(number).max().unwrap_or(0)
    }
}

impl Resources {
    /// Reads a line of the log: `400 bytes stack frame, 0 bytes spill stores`, `Used 10 registers,
    /// 256 bytes smem`. A kernel that calls functions has further stack lines; the largest counts.
    fn read(&mut self, line: &str) {
        for part in line.split(',') {
            let mut words = part.split_whitespace().skip_while(|word| word.parse::<u32>().is_err());
            let Some(number) = words.next().and_then(|word| word.parse::<u32>().ok()) else { continue };
            let field = match words.collect::<Vec<_>>()[..] {
                ["registers"] => &mut self.registers,
                ["bytes", "stack", "frame"] | ["bytes", "cumulative", "stack", "size"] => &mut self.stack,
                ["bytes", "spill", "stores"] => &mut self.spill_stores,
                ["bytes", "spill", "loads"] => &mut self.spill_loads,
                ["bytes", "smem"] => &mut self.shared,
                _ => continue,
            };
            *field = number.max(*field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_parsed() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
ptxas         .     400 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 400 bytes cumulative stack size, 4 bytes cmem[0]
ptxas info    : Compile time = 20.650 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
";
        let compiled =
            Compiled { cubin: vec![], log: log.into(), source: String::new(), compiler: String::new() };
        let k2 = Resources {
            entry: "k2".into(),
            registers: 32,
            spill_stores: 12,
            spill_loads: 16,
            stack: 400,
            ..Resources::default()
        };
        let k = Resources { entry: "k".into(), registers: 10, shared: 256, ..Resources::default() };
        assert_eq!(compiled.resources(), [k2, k]);
        let largest = (compiled.registers(), compiled.spills(), compiled.stack(), compiled.shared());
        assert_eq!(largest, (32, 28, 400, 256));
    }
}

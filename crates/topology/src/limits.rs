//! The most that is taken from outside. Beyond it the answer is an error that says so.

/// Texts that are read together.
pub const SOURCES_MAX: usize = 32;
/// Bytes of one text: a hundred times what `nvidia-smi -q` prints for eight GPUs.
pub const SOURCE_BYTES_MAX: usize = 4 << 20;
/// Lines of one text.
pub const LINES_MAX: usize = 100_000;
/// Characters of one line that are looked at.
pub const LINE_CHARS_MAX: usize = 8192;
/// GPUs of one machine. The largest NVLink domain has 72.
pub const GPUS_MAX: usize = 128;
/// Columns of a matrix: GPUs and network adapters.
pub const COLUMNS_MAX: usize = 512;
/// Elements of an XML file.
pub const XML_NODES_MAX: u32 = 100_000;
/// PCI bridges above one device, and elements that an XML file nests.
pub const DEPTH_MAX: usize = 64;
/// Characters of a name.
pub const NAME_CHARS_MAX: usize = 96;
/// Characters of another text about a machine.
pub const TEXT_CHARS_MAX: usize = 1024;
/// Bytes of one file of the kernel's file systems.
pub const SYS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Devices on the PCI bus that are looked at.
pub const PCI_DEVICES_MAX: usize = 16_384;

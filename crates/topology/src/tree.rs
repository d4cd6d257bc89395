//! Classes of paths from a PCI tree: where two GPUs' ways to the processor part. Used by every reader that knows the
//! bridges above a GPU.

use crate::link::LinkClass;

/// Where a GPU hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The host bridge, as `0000:40`.
    pub(crate) root: String,
    /// The bridges below it, down to the GPU.
    pub(crate) bridges: Vec<String>,
    /// The NUMA node of the host bridge.
    pub(crate) node: Option<u32>,
}

/// The class of the path between two GPUs; `None` where only the NUMA node could tell and is not known.
///
/// Below one switch each way passes one port of it, which is `PIX`; further ports are further switches, `PXB`. Ways that
/// meet at the host bridge only are `PHB`; at none, the node tells `NODE` from `SYS`.
pub(crate) fn class(a: &Place, b: &Place) -> Option<LinkClass> {
    if a.root == b.root {
        let shared = a.bridges.iter().zip(&b.bridges).take_while(|(x, y)| x == y).count();
        let (left, right) = (a.bridges.len() - shared, b.bridges.len() - shared);
        return Some(match shared {
            0 => LinkClass::Phb,
            _ if left <= 1 && right <= 1 => LinkClass::Pix,
            _ => LinkClass::Pxb,
        });
    }
    match (a.node, b.node) {
        (Some(x), Some(y)) if x == y => Some(LinkClass::Node),
        (Some(_), Some(_)) => Some(LinkClass::Sys),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(root: &str, bridges: &[&str], node: Option<u32>) -> Place {
        Place { root: root.into(), bridges: bridges.iter().map(|b| (*b).to_string()).collect(), node }
    }

    #[test]
    fn the_way_is_as_long_as_the_part_not_shared() {
        let port = |p: &str| place("0000:40", &["40:01.1", "41:00.0", p], Some(0));
        assert_eq!(class(&port("42:00.0"), &port("42:01.0")), Some(LinkClass::Pix));
        let deep = place("0000:40", &["40:01.1", "41:00.0", "42:02.0", "45:00.0", "46:00.0"], Some(0));
        assert_eq!(class(&port("42:00.0"), &deep), Some(LinkClass::Pxb));
        let other_port = place("0000:40", &["40:03.1"], Some(0));
        assert_eq!(class(&port("42:00.0"), &other_port), Some(LinkClass::Phb));
        let other_root = |node| place("0000:c0", &["c0:01.1"], node);
        assert_eq!(class(&other_port, &other_root(Some(0))), Some(LinkClass::Node));
        assert_eq!(class(&other_port, &other_root(Some(1))), Some(LinkClass::Sys));
        assert_eq!(class(&other_port, &other_root(None)), None);
    }
}

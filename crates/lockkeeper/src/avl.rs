//! Balanced search trees whose links live in the nodes themselves.
//!
//! A lock stands in two trees at once (by place and by owner), a waiter in a
//! third, and none of them may allocate when it is rearranged: unlocking must
//! not fail. So the trees are intrusive: an [`Order`] names which of a node's
//! links it uses and how nodes compare, and may carry a summary of each subtree
//! (the greatest end below, for interval search).
//!
//! AVL trees, since they are balanced whatever the order of insertions: a
//! client who chooses his ranges with care gains nothing. The height of a tree
//! of 2^32 nodes is at most 46, so recursion is bounded.

use core::cmp::Ordering;

use crate::slab::{NIL, Slab};

/// The links of a node in one tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) left: u32,
    pub(crate) right: u32,
}

impl Links {
    pub(crate) const NONE: Links = Links {
        left: NIL,
        right: NIL,
    };
}

/// One way of ordering the nodes of a slab. Keys are unique within a tree.
pub(crate) trait Order {
    type Node;

    fn links(node: &Self::Node) -> &Links;
    fn links_mut(node: &mut Self::Node) -> &mut Links;
    fn height(node: &Self::Node) -> u8;
    fn set_height(node: &mut Self::Node, height: u8);
    fn compare(a: (u32, &Self::Node), b: (u32, &Self::Node)) -> Ordering;

    /// Recomputes what `node` knows of its subtree, from its children.
    fn summarize(_nodes: &mut Slab<Self::Node>, _id: u32) {}

    /// The same for a node without children.
    fn summarize_leaf(_node: &mut Self::Node) {}
}

fn height<O: Order>(nodes: &Slab<O::Node>, id: u32) -> u8 {
    if id == NIL { 0 } else { O::height(&nodes[id]) }
}

fn refresh<O: Order>(nodes: &mut Slab<O::Node>, id: u32) {
    let links = *O::links(&nodes[id]);
    let tallest = height::<O>(nodes, links.left).max(height::<O>(nodes, links.right));
    O::set_height(&mut nodes[id], tallest + 1);
    O::summarize(nodes, id);
}

fn rotate_left<O: Order>(nodes: &mut Slab<O::Node>, id: u32) -> u32 {
    let right = O::links(&nodes[id]).right;
    O::links_mut(&mut nodes[id]).right = O::links(&nodes[right]).left;
    O::links_mut(&mut nodes[right]).left = id;
    refresh::<O>(nodes, id);
    refresh::<O>(nodes, right);
    right
}

fn rotate_right<O: Order>(nodes: &mut Slab<O::Node>, id: u32) -> u32 {
    let left = O::links(&nodes[id]).left;
    O::links_mut(&mut nodes[id]).left = O::links(&nodes[left]).right;
    O::links_mut(&mut nodes[left]).right = id;
    refresh::<O>(nodes, id);
    refresh::<O>(nodes, left);
    left
}

fn balance<O: Order>(nodes: &mut Slab<O::Node>, id: u32) -> u32 {
    let Links { left, right } = *O::links(&nodes[id]);
    let (left_height, right_height) = (height::<O>(nodes, left), height::<O>(nodes, right));
    if left_height > right_height + 1 {
        let inner = *O::links(&nodes[left]);
        if height::<O>(nodes, inner.left) < height::<O>(nodes, inner.right) {
            O::links_mut(&mut nodes[id]).left = rotate_left::<O>(nodes, left);
        }
        rotate_right::<O>(nodes, id)
    } else if right_height > left_height + 1 {
        let inner = *O::links(&nodes[right]);
        if height::<O>(nodes, inner.right) < height::<O>(nodes, inner.left) {
            O::links_mut(&mut nodes[id]).right = rotate_right::<O>(nodes, right);
        }
        rotate_left::<O>(nodes, id)
    } else {
        refresh::<O>(nodes, id);
        id
    }
}

/// Puts `new`, which is in no tree of this order, into the tree at `root`;
/// returns the new root.
#[inline]
pub(crate) fn insert<O: Order>(nodes: &mut Slab<O::Node>, root: u32, new: u32) -> u32 {
    let node = &mut nodes[new];
    *O::links_mut(node) = Links::NONE;
    O::set_height(node, 1);
    O::summarize_leaf(node);
    if root == NIL {
        new
    } else {
        insert_below::<O>(nodes, root, new)
    }
}

fn insert_below<O: Order>(nodes: &mut Slab<O::Node>, root: u32, new: u32) -> u32 {
    if root == NIL {
        return new;
    }
    let links = *O::links(&nodes[root]);
    if O::compare((new, &nodes[new]), (root, &nodes[root])).is_lt() {
        O::links_mut(&mut nodes[root]).left = insert_below::<O>(nodes, links.left, new);
    } else {
        O::links_mut(&mut nodes[root]).right = insert_below::<O>(nodes, links.right, new);
    }
    balance::<O>(nodes, root)
}

/// Takes `old` out of the tree at `root`; returns the new root.
#[inline]
pub(crate) fn remove<O: Order>(nodes: &mut Slab<O::Node>, root: u32, old: u32) -> u32 {
    let links = O::links(&nodes[root]);
    if root == old && links.left == NIL && links.right == NIL {
        return NIL;
    }
    remove_below::<O>(nodes, root, old)
}

fn remove_below<O: Order>(nodes: &mut Slab<O::Node>, root: u32, old: u32) -> u32 {
    debug_assert_ne!(root, NIL, "the node is not in this tree");
    let links = *O::links(&nodes[root]);
    if old == root {
        if links.left == NIL {
            return links.right;
        }
        if links.right == NIL {
            return links.left;
        }
        let (rest, next) = remove_first::<O>(nodes, links.right);
        *O::links_mut(&mut nodes[next]) = Links {
            left: links.left,
            right: rest,
        };
        return balance::<O>(nodes, next);
    }
    if O::compare((old, &nodes[old]), (root, &nodes[root])).is_lt() {
        O::links_mut(&mut nodes[root]).left = remove_below::<O>(nodes, links.left, old);
    } else {
        O::links_mut(&mut nodes[root]).right = remove_below::<O>(nodes, links.right, old);
    }
    balance::<O>(nodes, root)
}

/// Takes the least node out of a tree that is not empty; returns the new root
/// and that node.
pub(crate) fn remove_first<O: Order>(nodes: &mut Slab<O::Node>, root: u32) -> (u32, u32) {
    let links = *O::links(&nodes[root]);
    if links.left == NIL {
        return (links.right, root);
    }
    let (rest, first) = remove_first::<O>(nodes, links.left);
    O::links_mut(&mut nodes[root]).left = rest;
    (balance::<O>(nodes, root), first)
}

/// The least node for which `reached` holds. `reached` must be monotone along
/// the order: false up to some node, true from there on.
pub(crate) fn first<O: Order>(
    nodes: &Slab<O::Node>,
    mut root: u32,
    mut reached: impl FnMut(&O::Node) -> bool,
) -> u32 {
    let mut best = NIL;
    while root != NIL {
        let node = &nodes[root];
        if reached(node) {
            best = root;
            root = O::links(node).left;
        } else {
            root = O::links(node).right;
        }
    }
    best
}

/// Every node in order, for listings and checks.
pub(crate) fn walk<O: Order>(nodes: &Slab<O::Node>, root: u32, visit: &mut dyn FnMut(u32)) {
    if root == NIL {
        return;
    }
    let links = *O::links(&nodes[root]);
    walk::<O>(nodes, links.left, visit);
    visit(root);
    walk::<O>(nodes, links.right, visit);
}

/// Panics unless the tree is ordered, balanced and well summarized; returns its
/// number of nodes. `same_summary` compares a node's summary with a fresh one.
pub(crate) fn check<O: Order>(nodes: &Slab<O::Node>, root: u32) -> u32 {
    if root == NIL {
        return 0;
    }
    let links = *O::links(&nodes[root]);
    for (child, side) in [
        (links.left, Ordering::Less),
        (links.right, Ordering::Greater),
    ] {
        if child != NIL {
            let order = O::compare((child, &nodes[child]), (root, &nodes[root]));
            assert_eq!(order, side, "tree out of order");
        }
    }
    let count = 1 + check::<O>(nodes, links.left) + check::<O>(nodes, links.right);
    let (left, right) = (
        height::<O>(nodes, links.left),
        height::<O>(nodes, links.right),
    );
    assert!(left.abs_diff(right) <= 1, "tree out of balance");
    assert_eq!(O::height(&nodes[root]), left.max(right) + 1, "wrong height");
    count
}

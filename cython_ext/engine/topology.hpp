// Which rank sits where, and which rank owns which slice.
#pragma once

#include <vector>

namespace gf {

struct Topology {
  int rank = 0;
  int size = 1;
  std::vector<std::vector<int>> nodes;  // ranks of each node, in order
  std::vector<int> node_of;             // node of each rank
  int node = 0;                         // mine
  int local = 0;                        // my place in it
  int slices = 1;                       // the most ranks on any node

  void finish() {
    node_of.assign(size, 0);
    slices = 1;
    for (size_t k = 0; k < nodes.size(); ++k) {
      if (static_cast<int>(nodes[k].size()) > slices) slices = static_cast<int>(nodes[k].size());
      for (size_t i = 0; i < nodes[k].size(); ++i) {
        node_of[nodes[k][i]] = static_cast<int>(k);
        if (nodes[k][i] == rank) {
          node = static_cast<int>(k);
          local = static_cast<int>(i);
        }
      }
    }
  }
  int node_count() const { return static_cast<int>(nodes.size()); }
  int local_size() const { return static_cast<int>(nodes[node].size()); }
  int owner_local(int on_node, int slice) const { return slice % static_cast<int>(nodes[on_node].size()); }
  int owner(int on_node, int slice) const { return nodes[on_node][owner_local(on_node, slice)]; }
};

}  // namespace gf

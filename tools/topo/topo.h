/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of wherry topo share; wherry doctor uses what reads a machine. */
#ifndef TOOLS_TOPO_TOPO_H
#define TOOLS_TOPO_TOPO_H

#include <stdio.h>

#include <jansson.h>

#include "screen.h"
#include "topology/topology.h"
#include "util/error.h"

struct wh_nvml;

/* The library that NVML or the CUDA driver is to be opened as: of this machine, or ROOT/lib/NAME.
 * NULL: a recorded tree has none. */
const char *topo_library(const struct wh_tree *tree, const char *name, char *out, size_t size);

/* Open NVML as above; NULL: none, and wh_fail_text() says why. */
struct wh_nvml *topo_nvml(const struct wh_tree *tree);

/* Add packages, cores and caches, by hwloc: of this machine, or of ROOT/hwloc.xml. */
int topo_cpu(const struct wh_tree *tree, struct wh_topology *topology);

/* What --root and --record say. Makes the folder to record into. 0, or an exit code after a line on
 * stderr. */
int topo_tree(const struct arguments *arguments, struct wh_tree *out);

/* Read a machine, all of it; with `cuda` also what only the CUDA driver knows, which takes a while
 * to start. `tree` says from where, and into which folder it is copied. 0, or an exit code after a
 * line on stderr. */
int topo_collect(const struct wh_tree *tree, bool cuda, struct wh_topology **out);

/* The topology as JSON, and back. What can be worked out of it again is in the JSON for its readers
 * and not read back. topo_from_json(): NULL, with the reason in `why`, if it is none. */
json_t *topo_to_json(const struct wh_topology *topology);
struct wh_topology *topo_from_json(const json_t *object, char *why, size_t size);

/* Read what was saved by wherry topo --json. 0, or an exit code after a line on stderr. */
int topo_load(const char *path, struct wh_topology **out);

/* All ends of a topology: GPUs, NICs, memories, in this order. The caller frees it; NULL: no
 * memory, or none at all. */
struct wh_end *topo_ends(const struct wh_topology *topology, size_t *count);

/* "GPU0", "mlx5_0", "MEM1". */
void topo_end_name(const struct wh_topology *topology, struct wh_end end, char out[WH_NAME]);

/* "1.5 TiB", "512 MiB"; "-" if not known. */
void topo_size(char *out, size_t size, uint64_t bytes);

/* "32 GT/s x16"; "-" for what is not known. */
void topo_link(char *out, size_t size, double speed, int width);

void topo_print(const struct wh_topology *topology, const struct screen *screen);
void topo_dot(const struct wh_topology *topology, FILE *out);
void topo_svg(const struct wh_topology *topology, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of wherry topo share. wherry doctor and wherry top use the part that reads a
 * machine. */
#ifndef TOOLS_TOPO_TOPO_H
#define TOOLS_TOPO_TOPO_H

#include <stdio.h>

#include <jansson.h>

#include "screen.h"
#include "topology/topology.h"
#include "util/error.h"

struct wh_nvml;

/* The option rows that topo_tree() takes. `folders`: what the command reads. */
#define TOPO_ROOT_OPTION(folders)                                                                  \
	{                                                                                          \
		.name = "root", .argument = "DIR", .complete = "file",                             \
		.help = "read " folders " instead of this machine's"                               \
	}
#define TOPO_RECORD_OPTION                                                                         \
	{                                                                                          \
		.name = "record", .argument = "DIR", .complete = "file",                           \
		.help = "copy what is read into DIR, for --root"                                   \
	}

/* The library to open as NVML: NAME of this machine, or ROOT/lib/NAME of a recorded tree; NULL: the
 * tree has none. */
const char *topo_library(const struct wh_tree *tree, const char *name, char *out, size_t size);

/* Open NVML, of this machine or of a recorded tree; NULL: none, and wh_fail_text() has the reason.
 */
struct wh_nvml *topo_nvml(const struct wh_tree *tree);

/* Add packages, cores and caches, which hwloc reads from this machine or from ROOT/hwloc.xml. */
int topo_cpu(const struct wh_tree *tree, struct wh_topology *topology);

/* Take --root and --record, and make the folder of --record. 0, or an exit code after a line on
 * stderr. */
int topo_tree(const struct arguments *arguments, struct wh_tree *out);

/* Read a whole machine from `tree`, and record it if the tree says so. `cuda`: also start CUDA,
 * which is slow, for what only CUDA knows. 0, or an exit code after a line on stderr. */
int topo_collect(const struct wh_tree *tree, bool cuda, struct wh_topology **out);

/* A topology as JSON, and back. Derived values (the matrix) are in the JSON for its readers only.
 * topo_from_json(): NULL, with the reason in `why`, if the JSON is not a topology. */
json_t *topo_to_json(const struct wh_topology *topology);
struct wh_topology *topo_from_json(const json_t *object, char *why, size_t size);

/* Read a file of wherry topo --json; "-": stdin. 0, or an exit code after a line on stderr. */
int topo_load(const char *path, struct wh_topology **out);

/* All ends of a topology: GPUs, NICs, memories, in this order. The caller frees them; NULL: out of
 * memory. */
struct wh_end *topo_ends(const struct wh_topology *topology, size_t *count);

/* "GPU0", "mlx5_0", "MEM1". */
void topo_end_name(const struct wh_topology *topology, struct wh_end end, char out[WH_NAME]);

/* "1.5 TiB", "512 MiB"; "-": unknown. */
void topo_size(char *out, size_t size, uint64_t bytes);

/* "32 GT/s x16"; "-": unknown. */
void topo_link(char *out, size_t size, double speed, int width);

void topo_print(const struct wh_topology *topology, const struct screen *screen);
void topo_dot(const struct wh_topology *topology, FILE *out);
void topo_svg(const struct wh_topology *topology, FILE *out);

#endif

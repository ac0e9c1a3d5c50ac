/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan: who sends which part of the tensors to whom, from the engines of one layout to those of
 * another.
 *
 * The tensors are cut where any slice begins or ends, so that a cell, a box of a tensor, lies as a
 * whole in every slice that it touches. Large cells are cut further. A step moves one cell from a
 * slice to another: from a source, or from a target that a former step has filled. Steps are in an
 * order in which each finds its bytes.
 *
 *   - Every byte of every target slice is written by exactly one step.
 *   - A cell enters a host once, and not at all if an engine there holds it. Within the host, who
 *     has it hands it on.
 *   - Who sends is whoever would be ready first: by the bytes that its links carry already, and by
 *     how many steps precede its own. So large cells go along chains, where each sends as often as
 *     it receives, and small ones along trees.
 *   - Cells have pieces. A step forwards a piece as soon as the step before has brought it.
 */
#ifndef WH_WEIGHTS_PLAN_H
#define WH_WEIGHTS_PLAN_H

#include "weights/cluster.h"
#include "weights/layout.h"

#define WH_PLAN_FIRST UINT32_MAX /* a step from a source: no other precedes it */
#define WH_PLAN_PIECE_NS 5e6 /* that a piece takes on the slowest NIC, at most */
#define WH_PLAN_PIECE_LEAST (UINT64_C(64) << 10) /* but no less than so many bytes */

struct wh_cell {
	uint64_t bytes;
	size_t box; /* in plan.numbers: dims begins, dims ends */
	uint32_t tensor; /* of the targets' layout */
	uint32_t pieces; /* at least 1 */
};

struct wh_step {
	uint32_t cell;
	uint32_t from; /* a slice of the targets; if `before` is WH_PLAN_FIRST, of the sources */
	uint32_t to; /* a slice of the targets */
	uint32_t before; /* the step that brings the bytes, or WH_PLAN_FIRST */
};

struct wh_plan {
	const struct wh_layout *sources, *targets; /* which must outlive the plan */
	struct wh_cluster cluster;
	struct wh_cell *cells;
	struct wh_step *steps;
	uint64_t *numbers;
	uint32_t cell_count, step_count;
	size_t number_count;
	uint64_t bytes; /* that all steps move */
};

struct wh_plan_options {
	uint64_t chunk; /* bytes of a cell, at most if it can be cut; 0: 64 MiB */
	/* Bytes of a piece, about; 0: 4 MiB, or less between hosts if the slowest NIC takes more
	 * than 5 ms for that: a chain of n hosts is filled in the time of n pieces. */
	uint64_t piece;
};

/* Make a plan. options may be NULL. 0, or -EINVAL (a tensor differs between the layouts, or engines
 * and hosts do; an engine uses a region in both layouts; two targets overlap in memory), -ENOENT
 * (no source holds a part; the text names it), -E2BIG (too many steps), -ENOMEM. The text has both
 * sides in one line. */
int wh_plan_new(const struct wh_layout *sources, const struct wh_layout *targets,
		const struct wh_plan_options *options, struct wh_plan **out);
void wh_plan_free(struct wh_plan *plan);

/* The slice that a step reads, and its layout in *layout. */
const struct wh_slice *wh_step_from(const struct wh_plan *plan, const struct wh_step *step,
				    const struct wh_layout **layout);

/* The nodes at both ends of a step. */
uint32_t wh_step_sender(const struct wh_plan *plan, const struct wh_step *step);
uint32_t wh_step_receiver(const struct wh_plan *plan, const struct wh_step *step);

/* ---- what a step is as transfers (blocks.c) ----------------------------------------------------
 */

/* Blocks of one length in two regions, as nested strides, outermost first: what struct
 * wh_blocks_desc expresses. Runs that are contiguous on both sides are one block, and dimensions
 * that one stride covers on both sides are one. */
struct wh_strided {
	uint64_t block_length; /* bytes */
	uint64_t from_offset, to_offset; /* of the first block in its region */
	uint64_t count[WH_LAYOUT_DIMS];
	uint64_t from_stride[WH_LAYOUT_DIMS], to_stride[WH_LAYOUT_DIMS]; /* bytes */
	uint32_t dims; /* 0: one block */
};

/* Pieces [piece, piece + count) of a step's cell, which are one box. count: at least 1. */
void wh_step_blocks(const struct wh_plan *plan, const struct wh_step *step, uint32_t piece,
		    uint32_t count, struct wh_strided *out);

/* The number of blocks; and the offsets of block `index`, in order. */
uint64_t wh_strided_blocks(const struct wh_strided *strided);
void wh_strided_block(const struct wh_strided *strided, uint64_t index, uint64_t *from,
		      uint64_t *to);

/* The box of piece `piece` of `pieces` of a box: dims begins, dims ends. Cut along the first
 * dimension that is longer than 1, into parts that differ by one at most. */
void wh_box_piece(const uint64_t *box, uint32_t dims, uint32_t piece, uint32_t pieces,
		  uint64_t out[2 * WH_LAYOUT_DIMS]);

/* How long that dimension is: the most pieces that a box can be cut into. */
uint64_t wh_box_pieces_most(const uint64_t *box, uint32_t dims);

#endif

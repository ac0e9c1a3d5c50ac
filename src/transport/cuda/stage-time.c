/* SPDX-License-Identifier: Apache-2.0 */
/* The transport cuda: what staging takes, for planning. */
#include <stdlib.h>
#include <string.h>

#include "transport/cuda/cuda.h"
#include "transport/fragment.h"
#include "util/clock.h"

struct side {
	const struct wh_device_mapping *mapping;
	struct wh_gpu_stream *stream; /* NULL: the CPU */
};

/* The side's stream, for GPUs. False: the driver gives none. */
static bool side_find(struct wh_gpus *gpus, const struct wh_device_mapping *mapping,
		      enum wh_blocks_way way, struct side *out)
{
	*out = (struct side){ .mapping = mapping };
	return !wh_cuda_stage_stream(gpus, mapping, way, false, &out->stream);
}

void wh_cuda_stage_prepare(struct wh_gpus *gpus, struct wh_device_mapping *local,
			   struct wh_device_mapping *remote, uint32_t op)
{
	struct side source, target;

	if (side_find(gpus, op == WH_WRITE ? local : remote, WH_BLOCKS_TO_HOST, &source) &&
	    source.stream)
		wh_gpu_stream_probe(source.stream, 0, 0);
	if (side_find(gpus, op == WH_WRITE ? remote : local, WH_BLOCKS_FROM_HOST, &target) &&
	    target.stream)
		wh_gpu_stream_probe(target.stream, 0, 0);
}

/* ns a byte of the CPU's copies into slots and out of them. */
static double side_memcpy_time(void)
{
	size_t length = WH_SLOT / 4;
	unsigned char *from = malloc(length), *to = malloc(length);
	int64_t best = INT64_MAX;

	for (int i = 0; from && to && i < 3; i++) {
		int64_t start = wh_now();

		memset(from, i, length); /* its pages are there, and the copy is not left out */
		memcpy(to, from, length);
		start = wh_now() - start + to[length / 2] % 2;
		best = start < best ? start : best;
	}
	free(from);
	free(to);
	return best == INT64_MAX ? 0 : (double)best / 2 / (double)length;
}

/* One side's step with `count` copies of `length` bytes. */
static double side_time(const struct side *side, double count, uint64_t length, bool *measured)
{
	double kernel, copies;

	if (!side->stream)
		return side_memcpy_time() * count * (double)length;
	*measured = *measured && atomic_load(&side->stream->cost)->measured;
	wh_gpu_stream_times(side->stream, (uint64_t)(count + 0.5), length, &kernel, &copies);
	return side->mapping->managed || !(kernel > 0) || copies < kernel ? copies : kernel;
}

bool wh_cuda_stage_time(const struct wh_fragment *fragment, const struct wh_device_mapping *local,
			const struct wh_device_mapping *remote, struct wh_gpus *gpus,
			struct wh_cuda_time *out)
{
	uint64_t length = fragment->bytes / fragment->transfers;
	double slots = (double)fragment->bytes / (double)WH_SLOT, into, out_of, lesser;
	bool write = fragment->op == WH_WRITE;
	struct side source, target;

	if (local->file || remote->file)
		return false;
	if (!side_find(gpus, write ? local : remote, WH_BLOCKS_TO_HOST, &source) ||
	    !side_find(gpus, write ? remote : local, WH_BLOCKS_FROM_HOST, &target))
		return false;
	out->measured = true;
	into = side_time(&source, (double)fragment->transfers, length, &out->measured);
	out_of = side_time(&target, (double)fragment->transfers, length, &out->measured);
	/* Both sides work at the same time, on different slots: only the slower side counts, but
	 * for one slot. */
	lesser = into < out_of ? into : out_of;
	out->ns = into + out_of - (slots > 1 ? lesser * (1 - 1 / slots) : 0);
	return true;
}

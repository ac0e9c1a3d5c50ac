/* SPDX-License-Identifier: Apache-2.0 */
/* The transport cuda: its functions. */
#include "transport/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/region-window.h"
#include "memory/file.h"
#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/blocks.h"
#include "transport/core.h"
#include "transport/cuda/gds.h"
#include "transport/cuda/pages.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/config.h"
#include "util/cpus.h"
#include "util/error.h"

/* ---- engine ---------------------------------------------------------------------------------- */

static unsigned engine_file_threads(struct wh_engine *engine)
{
	unsigned most = (unsigned)wh_engine_config(engine)->number[WH_SETTING_FILE_THREADS];
	unsigned cpus = wh_cpus();

	return wh_engine_turns(engine) ? 1 : most < cpus ? most : cpus;
}

static int cuda_engine_open(struct wh_engine *engine, void **state)
{
	struct wh_device_mappings *mappings = calloc(1, sizeof(*mappings));

	if (!mappings)
		return wh_fail(ENOMEM, "cuda: no memory");
	mappings->engine = engine;
	mappings->gpus = wh_engine_gpus(engine);
	mappings->gds = wh_gds_new(mappings);
	mappings->file_threads = engine_file_threads(engine);
	wh_page_rates_init(&mappings->page_rates);
	pthread_mutex_init(&mappings->lock, NULL);
	wh_fabric_domains_init(&mappings->domains);
	wh_gpu_sharing_init(&mappings->sharing);
	*state = mappings;
	return 0;
}

static void cuda_engine_close(struct wh_engine *engine, void *state)
{
	struct wh_device_mappings *mappings = state;

	(void)engine;
	wh_page_rates_free(&mappings->page_rates);
	wh_gpu_sharing_destroy(&mappings->sharing);
	wh_fabric_domains_destroy(&mappings->domains);
	wh_gds_free(mappings->gds);
	pthread_mutex_destroy(&mappings->lock);
	free(mappings);
}

/* Neither a batch nor a peer uses the region any more. */
static void cuda_region_closed(struct wh_engine *engine, void *state, struct wh_region *region)
{
	struct wh_device_mappings *mappings = state;
	struct wh_device_mapping *mapping;

	(void)engine;
	if (!atomic_load(&region->transport[WH_TRANSPORT_CUDA]) && !atomic_load(&mappings->pins))
		return;
	pthread_mutex_lock(&mappings->lock);
	mapping = atomic_exchange(&region->transport[WH_TRANSPORT_CUDA], NULL);
	if (mapping) {
		wh_pin_leave(mappings, mapping);
		wh_device_mapping_free(mappings, mapping);
	}
	wh_pins_release(mappings);
	pthread_mutex_unlock(&mappings->lock);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static int cuda_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_cuda_peer *cuda;

	cuda = calloc(1, sizeof(*cuda));
	if (!cuda) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	cuda->mappings = wh_engine_transport(wh_peer_engine(peer), WH_TRANSPORT_CUDA);
	cuda->peer = peer;
	pthread_mutex_init(&cuda->lock, NULL);
	wh_fabric_peer_open(cuda);
	*state = cuda;
	return 0;
}

static void cuda_peer_close(struct wh_peer *peer, void *state)
{
	struct wh_cuda_peer *cuda = state;

	(void)peer;
	wh_fabric_peer_close(cuda);
	pthread_mutex_destroy(&cuda->lock);
	free(cuda);
}

/* What is in flight ends by itself, and soon, as GPUs wait for no peer. wh_cuda_verify() then lets
 * it fail. */
static void cuda_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	struct wh_cuda_peer *cuda = state;

	(void)peer;
	pthread_mutex_lock(&cuda->lock);
	cuda->changes += !cuda->lost;
	cuda->lost = error;
	snprintf(cuda->lost_text, sizeof(cuda->lost_text), "%s", text);
	pthread_mutex_unlock(&cuda->lock);
	wh_fabric_peer_lost(cuda);
}

static int cuda_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct wh_cuda_peer *cuda = state;

	(void)peer;
	(void)why;
	wh_fabric_peer_again(cuda);
	pthread_mutex_lock(&cuda->lock);
	cuda->changes += cuda->lost != 0;
	cuda->lost = 0;
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

/* Nobody is inside, so that no GPU uses the mapping. Must work without the transport's state for
 * the peer. */
static void cuda_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct wh_device_mappings *mappings =
		wh_engine_transport(wh_peer_engine(peer), WH_TRANSPORT_CUDA);
	struct wh_device_mapping *mapping;

	(void)state;
	wh_region_window_close_remote(wh_engine_region_windows(wh_peer_engine(peer)), region);
	mapping = atomic_exchange(&region->transport[WH_TRANSPORT_CUDA], NULL);
	if (!mapping)
		return;
	pthread_mutex_lock(&mappings->lock);
	wh_device_mapping_free(mappings, mapping);
	pthread_mutex_unlock(&mappings->lock);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Can this process copy between the mapping and pinned memory? */
static bool mapping_is_stageable(const struct wh_device_mapping *mapping)
{
	return mapping->host || mapping->file ||
	       (mapping->device &&
		(mapping->managed || mapping->context ||
		 atomic_load(&mapping->reached) >> mapping->device->ordinal & 1));
}

/* Make what work between the two needs, and measure it, before the first fragment comes.
 * `readable`: bytes of the remote memory that may be read. */
static int path_prepare(struct wh_device_mappings *mappings, const struct wh_gpu_path *path,
			const struct wh_device_mapping *remote, uint64_t readable,
			char why[WH_REFUSAL])
{
	struct wh_gpu_stream *stream;
	int error;

	for (int urgent = 0; urgent < 2; urgent++) {
		error = wh_gpus_stream(mappings->gpus, path->device, path->context, path->way,
				       urgent, &stream);
		if (error) {
			snprintf(why, WH_REFUSAL, "%.*s", WH_REFUSAL - 1, wh_error_text());
			return error;
		}
		wh_gpu_stream_probe(stream,
				    (path->device != remote->device || remote->fabric) && readable ?
					    wh_device_mapping_address(remote, path->device) :
					    0,
				    readable);
	}
	wh_gpu_sharing_first(mappings);
	return 0;
}

static int cuda_is_reachable(struct wh_peer *peer, void *state,
			     const struct wh_region *local_region, struct wh_region_entry *entry,
			     uint32_t op, char why[WH_REFUSAL])
{
	struct wh_region *region = (struct wh_region *)(uintptr_t)local_region;
	struct wh_cuda_peer *cuda = state;
	struct wh_device_mapping *local, *remote;
	struct wh_gpu_path path;
	uint64_t readable = wh_remote_access(peer, entry) & WH_ACCESS_READ ? entry->length : 0;
	int error;

	if (!wh_kind_on_gpu(local_region->entry.kind) && !wh_kind_on_gpu(entry->kind)) {
		snprintf(why, WH_REFUSAL, "neither side is a GPU's memory");
		return -ENXIO;
	}
	if (entry->kind == WH_MEMORY_FILE && !wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL,
			 "region %#llx is a file, which only its owner reads and writes",
			 (unsigned long long)wh_region_entry_id(entry));
		return -EOPNOTSUPP;
	}
	/* The GPU's side first: it decides in which GPU's context host memory is pinned. That of
	 * another host does not. */
	if (!wh_kind_on_gpu(entry->kind))
		error = 0;
	else if (wh_kind_on_gpu(local_region->entry.kind) && wh_fabric_is_apart(peer))
		error = wh_device_mapping_local(cuda->mappings, region, &local, why);
	else
		error = wh_cuda_remote(cuda, entry, &remote, why);
	if (!error)
		error = wh_device_mapping_local(cuda->mappings, region, &local, why);
	if (!error)
		error = wh_cuda_remote(cuda, entry, &remote, why);
	if (error)
		return error;
	if (wh_path_make(cuda->mappings, local, remote, op, &path, why)) {
		if (wh_peer_is_self(peer))
			wh_path_make_pull(cuda->mappings, local, remote, &path);
		return path_prepare(cuda->mappings, &path, remote, readable, why);
	}
	if (!mapping_is_stageable(local) || !mapping_is_stageable(remote))
		return -EOPNOTSUPP;
	wh_cuda_stage_prepare(cuda->mappings->gpus, local, remote, op);
	return 0;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void cuda_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)peer;
	wh_fail_begin(); /* errors belong to the batch, not to the call that submits it */
	if (!wh_cuda_few(state, fragment))
		wh_cuda_move(state, fragment);
	wh_fail_end(0);
}

/* The streams and the kernels are there since the plan; a few bytes go through windows. */
static int cuda_prepare(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			int64_t deadline, char why[WH_REFUSAL])
{
	const struct wh_fragment *fragment = NULL;

	(void)peer;
	(void)deadline;
	(void)why;
	wh_fail_begin(); /* without a window the GPU moves them */
	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_CUDA, fragment)))
		wh_cuda_few_prepare(state, fragment);
	wh_fail_end(0);
	return 0;
}

static void cuda_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			  int64_t deadline)
{
	(void)state;
	wh_gpus_progress(wh_engine_gpus(wh_peer_engine(peer)), wh_batch_is_running, batch,
			 deadline);
}

/* fragment.cancelled is set already: parts that are not started yet look at it. Those that wait at
 * a stream end here. */
static void cuda_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	(void)state;
	wh_gpus_withdraw(wh_engine_gpus(wh_peer_engine(peer)), fragment, -ECANCELED, "cancelled");
}

/* ---- explaining ------------------------------------------------------------------------------ */

/* The stream of a fragment. NULL: it is staged, or the driver gives none. */
static struct wh_gpu_stream *fragment_stream(const struct wh_fragment *fragment,
					     const struct wh_device_mapping *local,
					     const struct wh_device_mapping *remote,
					     struct wh_gpus *gpus, bool *staged)
{
	struct wh_gpu_path path;
	struct wh_gpu_stream *stream;

	wh_path_choose(local, remote, fragment->op, &path);
	*staged = !path.device;
	if (*staged || wh_gpus_stream(gpus, path.device, path.context, path.way, false, &stream))
		return NULL;
	return stream;
}

static bool mapping_uses_gds(const struct wh_device_mapping *mapping)
{
	char why[WH_REFUSAL];

	return mapping->gds && wh_file_gds_describe(mapping->gds, why, sizeof(why));
}

/* Staged between a file of ours and a GPU. */
static void describe_file(const struct wh_fragment *fragment, const struct wh_device_mapping *local,
			  const struct wh_device_mapping *remote, char *out, size_t size)
{
	const struct wh_device_mapping *source = fragment->op == WH_WRITE ? local : remote;
	char why[WH_REFUSAL] = "";

	if (source->pages)
		wh_file_pages_describe(source->pages, why, sizeof(why));
	if (mapping_uses_gds(local) || mapping_uses_gds(remote))
		snprintf(out, size, "file, by GPUDirect Storage");
	else if (source->pages && !*why)
		snprintf(out, size, "file, out of the page cache");
	else
		snprintf(out, size, "staged: %s", local->file ? local->why : remote->why);
}

static void describe_fragment(const struct wh_fragment *fragment,
			      const struct wh_device_mapping *local,
			      const struct wh_device_mapping *remote, struct wh_gpus *gpus,
			      char *out, size_t size)
{
	static const char *const ways[WH_BLOCKS_WAYS] = { "push", "pull", "to host", "from host",
							  "within" };
	bool staged, kernel;
	struct wh_gpu_stream *stream = fragment_stream(fragment, local, remote, gpus, &staged);

	if (local->file || remote->file) {
		describe_file(fragment, local, remote, out, size);
		return;
	}
	if (staged) {
		snprintf(out, size, "staged: %.*s", (int)size - 9,
			 *local->why ? local->why :
			 *remote->why ?
				       remote->why :
			 local->context || remote->context ?
				       "its sides belong to different contexts of the application" :
				       "no peer access");
		return;
	}
	if (!stream)
		return;
	kernel = wh_gpu_stream_prefers_kernel(
		stream, fragment->transfers,
		fragment->transfers ? fragment->bytes / fragment->transfers : 0);
	snprintf(out, size, "%s of cuda:%d, %s%s", kernel ? "kernel" : "copy engine",
		 stream->gpu->device->ordinal, ways[stream->way],
		 remote->fabric ? ", NVLink domain" : "");
}

/* A walk over a batch's fragments, with the mappings of each one's first transfer or base. */
struct mapping_walk {
	bool (*each)(struct mapping_walk *walk, const struct wh_fragment *fragment,
		     const struct wh_device_mapping *local,
		     const struct wh_device_mapping *remote); /* false: stop */
	struct wh_cuda_peer *cuda;
	struct wh_gpus *gpus;
	char *text;
	size_t size;
	struct wh_estimate *estimate;
	const struct wh_cuda_device *device; /* of the stream that was found */
};

/* True: no `each` has stopped the walk. */
static bool batch_walk(struct wh_peer *peer, void *state, const struct wh_batch *batch,
		       struct mapping_walk *walk)
{
	struct wh_region_table *entries = wh_peer_is_self(peer) ?
						  wh_engine_regions(wh_peer_engine(peer)) :
						  wh_peer_regions(peer);
	struct wh_cuda_peer *cuda = state;
	struct wh_fragment *fragment = NULL;
	bool more = true;

	walk->cuda = cuda;
	walk->gpus = wh_engine_gpus(wh_peer_engine(peer));
	/* Under this lock no region of ours is unregistered, which would free its mapping. */
	pthread_mutex_lock(&cuda->mappings->lock);
	while (more && (fragment = wh_batch_fragment(batch, WH_TRANSPORT_CUDA, fragment))) {
		struct wh_cuda_op op = { .cuda = cuda, .fragment = fragment };
		struct wh_device_mapping *local, *remote;
		struct wh_region_entry *entry;

		entry = wh_region_entry_enter(entries,
					      wh_fragment_remote(fragment, fragment->first));
		if (!entry)
			continue;
		wh_cuda_mappings(&op, fragment->first, &local, &remote);
		if (local && remote)
			more = walk->each(walk, fragment, local, remote);
		wh_region_entry_leave(entry);
	}
	pthread_mutex_unlock(&cuda->mappings->lock);
	return more;
}

static bool walk_describe_first(struct mapping_walk *walk, const struct wh_fragment *fragment,
				const struct wh_device_mapping *local,
				const struct wh_device_mapping *remote)
{
	size_t length;
	struct wh_gpu_path path;

	describe_fragment(fragment, local, remote, walk->gpus, walk->text, walk->size);
	length = strlen(walk->text);
	wh_path_choose(local, remote, fragment->op, &path);
	if (wh_path_choose_pull(walk->cuda->peer, fragment, local, remote, &path))
		snprintf(walk->text + length, walk->size - length, "; both ways: pull");
	return length == 0;
}

/* What moves the first fragment. */
static void cuda_describe_how(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			      char *out, size_t size)
{
	struct mapping_walk walk = { .each = walk_describe_first, .text = out, .size = size };
	const struct wh_fragment *fragment = NULL;

	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_CUDA, fragment))) {
		const char *backend;

		if (wh_cuda_few_describe(state, fragment, true, &backend, NULL)) {
			snprintf(out, size, "CPU window (%s)", backend);
			return;
		}
	}
	batch_walk(peer, state, batch, &walk);
}

/* A file's pages that have been read out of the page cache and by threads. */
static void describe_shares(const struct wh_file_pages *pages, char *line, size_t size)
{
	uint64_t by_gpu, by_threads;

	wh_file_pages_shares(pages, &by_gpu, &by_threads);
	if (by_gpu && by_threads)
		snprintf(line, size,
			 "file: %.0f%% out of the page cache by the GPU, %.0f%% by threads",
			 100 * (double)by_gpu / (double)(by_gpu + by_threads),
			 100 * (double)by_threads / (double)(by_gpu + by_threads));
}

static bool walk_describe_memory(struct mapping_walk *walk, const struct wh_fragment *fragment,
				 const struct wh_device_mapping *local,
				 const struct wh_device_mapping *remote)
{
	const struct wh_device_mapping *source = fragment->op == WH_WRITE ? local : remote;
	const struct wh_device_mapping *target = fragment->op == WH_WRITE ? remote : local;
	struct wh_file_gds *gds = source->gds ? source->gds : target->gds;
	char why[WH_REFUSAL] = "";

	if (gds && !wh_file_gds_describe(gds, why, sizeof(why)) && *why) {
		snprintf(walk->text, walk->size, "file: not by GPUDirect Storage: %s", why);
		return false;
	}
	*why = 0;
	if (source->pages)
		wh_file_pages_describe(source->pages, why, sizeof(why));
	if (*why)
		snprintf(walk->text, walk->size, "file: GPUs do not read its page cache: %s", why);
	else if (source->pages)
		describe_shares(source->pages, walk->text, walk->size);
	if (source->file)
		wh_file_describe_staged(source->file, WH_READ, walk->text, walk->size);
	else if (target->file)
		wh_file_describe_staged(target->file, WH_WRITE, walk->text, walk->size);
	return !*walk->text &&
	       !wh_gpus_describe(walk->gpus, local->device, walk->text, walk->size) &&
	       !wh_gpus_describe(walk->gpus, remote->device, walk->text, walk->size);
}

static void describe_figure(char *out, size_t size, const char *mover,
			    const struct wh_lesson_view *view, bool measured)
{
	char source[48];

	if (view->turns)
		snprintf(source, sizeof(source), "fastest of %u", (unsigned)view->turns);
	else
		snprintf(source, sizeof(source), measured ? "measured at first use" : "typical");
	snprintf(out, size, "%s %.1f us (%s)", mover, view->time / 1e3, source);
}

/* The figures by which kernel or copy engine was chosen for the first fragment that a GPU moves. */
static bool walk_describe_choice(struct mapping_walk *walk, const struct wh_fragment *fragment,
				 const struct wh_device_mapping *local,
				 const struct wh_device_mapping *remote)
{
	bool staged, measured;
	struct wh_gpu_stream *stream =
		fragment_stream(fragment, local, remote, walk->gpus, &staged);
	struct wh_lesson_view view[WH_MOVERS];
	char kernel[96], copies[96], rule[64] = "";
	double burden;

	if (!stream || !fragment->transfers || wh_gpu_stream_no_kernels(stream))
		return true;
	measured = atomic_load(&stream->cost)->measured;
	wh_gpu_stream_look(stream, fragment->transfers, fragment->bytes / fragment->transfers,
			   view);
	describe_figure(kernel, sizeof(kernel), "kernel", &view[WH_MOVER_KERNEL], measured);
	describe_figure(copies, sizeof(copies), "copy engine", &view[WH_MOVER_COPIES], measured);
	burden = wh_gpu_stream_burden(stream);
	if (burden > 0)
		snprintf(rule, sizeof(rule), "; a kernel counts as %.0f %% slower (model_first)",
			 100 * burden);
	snprintf(walk->text, walk->size, "cuda:%d: chosen by time: %s, %s%s",
		 stream->gpu->device->ordinal, kernel, copies, rule);
	return false;
}

static bool walk_find_device(struct mapping_walk *walk, const struct wh_fragment *fragment,
			     const struct wh_device_mapping *local,
			     const struct wh_device_mapping *remote)
{
	bool staged;
	struct wh_gpu_stream *stream =
		fragment_stream(fragment, local, remote, walk->gpus, &staged);

	walk->device = stream ? stream->gpu->device : NULL;
	return !stream;
}

static void cuda_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			  struct wh_description *out)
{
	/* Why a file is read by threads, or why there is no kernel, where one would be better. */
	struct mapping_walk walk = { .each = walk_describe_memory,
				     .text = out->memory,
				     .size = sizeof(out->memory) };

	cuda_describe_how(peer, state, batch, out->how, sizeof(out->how));
	if (out->briefly)
		return;
	batch_walk(peer, state, batch, &walk);
	walk.each = walk_describe_choice;
	if (strncmp(out->how, "CPU window", 10) == 0)
		return;
	if (!*out->memory)
		batch_walk(peer, state, batch, &walk);
	walk.each = walk_find_device;
	/* Outside of the walk's lock, as NVML may block. */
	if (!batch_walk(peer, state, batch, &walk))
		wh_gpu_sharing_describe(walk.cuda->mappings, walk.device, out->sharing,
					sizeof(out->sharing));
}

static bool walk_estimate(struct mapping_walk *walk, const struct wh_fragment *fragment,
			  const struct wh_device_mapping *local,
			  const struct wh_device_mapping *remote)
{
	uint64_t length = fragment->transfers ? fragment->bytes / fragment->transfers : 0;
	bool staged;
	struct wh_gpu_stream *stream =
		fragment_stream(fragment, local, remote, walk->gpus, &staged);
	struct wh_estimate *estimate = walk->estimate;
	struct wh_cuda_time ns;
	double kernel, copies;
	const char *backend;
	uint32_t ctas;

	if (wh_cuda_few_describe(walk->cuda, fragment, false, &backend, &ns)) {
		estimate->duration += (uint64_t)ns.ns;
		estimate->measured = estimate->measured && ns.measured;
		return true;
	}
	if (staged && length && wh_cuda_stage_time(fragment, local, remote, walk->gpus, &ns)) {
		estimate->duration += (uint64_t)ns.ns;
		estimate->measured = estimate->measured && ns.measured;
		return true;
	}
	if (!stream || !length)
		return false;
	wh_gpu_stream_times(stream, fragment->transfers, length, &kernel, &copies);
	ctas = wh_gpu_stream_ctas(stream, fragment->transfers, length);
	estimate->kernel += (uint64_t)kernel;
	estimate->copies += (uint64_t)copies;
	estimate->duration += (uint64_t)(kernel > 0 && kernel < copies ? kernel : copies);
	estimate->ctas = ctas > estimate->ctas ? ctas : estimate->ctas;
	estimate->measured = estimate->measured && atomic_load(&stream->cost)->measured;
	return true;
}

static bool cuda_estimate(struct wh_peer *peer, enum wh_transport_id id,
			  const struct wh_batch *batch, struct wh_estimate *out)
{
	struct mapping_walk walk = { .each = walk_estimate, .estimate = out };
	const struct wh_fragment *fragment = NULL;
	const char *backend;

	/* What few bytes go through, and what that takes, is known once it has been opened. */
	while (!wh_engine_inside(wh_peer_engine(peer)) &&
	       (fragment = wh_batch_fragment(batch, id, fragment)))
		wh_cuda_few_describe(wh_peer_transport(peer, id), fragment, true, &backend, NULL);
	return batch_walk(peer, wh_peer_transport(peer, id), batch, &walk);
}

/* On the same machine GPUs reach each other's memory, if the unix socket is there to share it. */
static bool cuda_session_reaches_gpus(const struct wh_session *session)
{
	return wh_engine_is_met(wh_session_engine(session), wh_session_hello(session));
}

/* What was exported to the session is not the transport's to close. */
static void cuda_session_close(struct wh_session *session)
{
	(void)session;
}

const struct wh_transport wh_transport_cuda = {
	.name = "cuda",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_PROGRESS,
	.frame_first = WH_FRAME_FABRIC_ASK,
	.frame_end = WH_FRAME_FABRIC_END,
	.hello = WH_CAPABLE_FABRIC | WH_CAPABLE_FABRIC_HOSTS,
	.engine_open = cuda_engine_open,
	.engine_close = cuda_engine_close,
	.region_coming = wh_fabric_region_coming,
	.region_closed = cuda_region_closed,
	.peer_open = cuda_peer_open,
	.peer_close = cuda_peer_close,
	.peer_lost = cuda_peer_lost,
	.peer_again = cuda_peer_again,
	.region_gone = cuda_region_gone,
	.peer_frame = wh_fabric_peer_frame,
	.region_export = wh_cuda_export,
	.is_reachable = cuda_is_reachable,
	.prepare = cuda_prepare,
	.submit = cuda_submit,
	.progress = cuda_progress,
	.cancel = cuda_cancel,
	.describe = cuda_describe,
	.estimate = cuda_estimate,
	.session_reaches_gpus = cuda_session_reaches_gpus,
	.session_frame = wh_fabric_session_frame,
	.session_close = cuda_session_close,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a machine: sysfs, hwloc for CPUs, NVML, libibverbs, and CUDA if requested. */
#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "platform/nvml.h"

const char *topo_library(const struct wh_tree *tree, const char *name, char *out, size_t size)
{
	if (wh_tree_is_live(tree)) {
		snprintf(out, size, "%s", name);
		return out;
	}
	snprintf(out, size, "%s/lib/%s", tree->root, name);
	return access(out, F_OK) ? NULL : out;
}

struct wh_nvml *topo_nvml(const struct wh_tree *tree)
{
	char path[WH_TREE_PATH];
	struct wh_nvml *nvml;

	/* A recorded tree without a library: opening the missing file gives the error text. */
	if (!topo_library(tree, WH_NVML_LIBRARY, path, sizeof(path)))
		snprintf(path, sizeof(path), "%s/lib/" WH_NVML_LIBRARY, tree->root);
	return wh_nvml_open(path, &nvml) ? NULL : nvml;
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

static int cpu_add_caches(hwloc_topology_t hwloc, struct wh_topology *topology)
{
	static const char *const kinds[] = { [HWLOC_OBJ_CACHE_UNIFIED] = "unified",
					     [HWLOC_OBJ_CACHE_DATA] = "data",
					     [HWLOC_OBJ_CACHE_INSTRUCTION] = "instruction" };

	for (int type = HWLOC_OBJ_L1CACHE; type <= HWLOC_OBJ_L3ICACHE; type++) {
		int count = hwloc_get_nbobjs_by_type(hwloc, (hwloc_obj_type_t)type);
		hwloc_obj_t object = hwloc_get_obj_by_type(hwloc, (hwloc_obj_type_t)type, 0);
		struct wh_cpu_cache *cache;

		if (count <= 0 || !object || !object->attr)
			continue;
		cache = WH_TOPOLOGY_ADD(topology, caches, cache_count);
		if (!cache)
			return -ENOMEM;
		cache->level = (int)object->attr->cache.depth;
		cache->count = count;
		cache->size_bytes =
			object->attr->cache.size ? object->attr->cache.size : WH_UNKNOWN;
		if ((size_t)object->attr->cache.type < sizeof(kinds) / sizeof(kinds[0]))
			snprintf(cache->kind, sizeof(cache->kind), "%s",
				 kinds[object->attr->cache.type]);
	}
	return 0;
}

static int cpu_read_hwloc(hwloc_topology_t hwloc, struct wh_topology *topology)
{
	hwloc_obj_t package = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, 0);
	const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
	struct wh_cpu *cpu = &topology->cpu;

	if (model)
		snprintf(cpu->model, sizeof(cpu->model), "%.127s", model);
	cpu->packages = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PACKAGE);
	cpu->cores = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE);
	cpu->threads = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
	return cpu_add_caches(hwloc, topology);
}

int topo_cpu(const struct wh_tree *tree, struct wh_topology *topology)
{
	hwloc_topology_t hwloc;
	char path[WH_TREE_PATH];
	int error = 0;

	if (hwloc_topology_init(&hwloc))
		return wh_topology_add_gap(topology, "CPU", "hwloc: %s", strerror(errno));
	snprintf(path, sizeof(path), "%s/hwloc.xml", tree->root);
	if (!wh_tree_is_live(tree) && (access(path, R_OK) || hwloc_topology_set_xml(hwloc, path)))
		error = wh_topology_add_gap(topology, "CPU", "%s: %s", path, strerror(errno));
	else if (hwloc_topology_load(hwloc))
		error = wh_topology_add_gap(topology, "CPU", "hwloc cannot read %s: %s",
					    wh_tree_is_live(tree) ? "this machine" : path,
					    strerror(errno));
	else
		error = cpu_read_hwloc(hwloc, topology);
	if (tree->record && wh_tree_is_live(tree)) {
		snprintf(path, sizeof(path), "%s/hwloc.xml", tree->record);
		hwloc_topology_export_xml(hwloc, path, 0);
	}
	hwloc_topology_destroy(hwloc);
	return error;
}

/* ---- NVML and options ----------------------------------------------------------------------- */

static int collect_nvml(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_nvml *nvml = topo_nvml(tree);
	char path[WH_TREE_PATH];
	FILE *record = NULL;
	int error;

	if (nvml && tree->record) {
		snprintf(path, sizeof(path), "%s/nvml.txt", tree->record);
		record = fopen(path, "we");
		wh_nvml_record(nvml, record);
	}
	error = wh_topology_add_nvml(topology, nvml, wh_fail_text());
	wh_nvml_close(nvml);
	if (record && fclose(record))
		note("%s: %s", path, strerror(errno));
	return error;
}

int topo_tree(const struct arguments *arguments, struct wh_tree *out)
{
	const char *root = argument(arguments, "root"), *record = argument(arguments, "record");
	struct stat status;

	*out = (struct wh_tree){ .root = root ? root : "", .record = record };
	if (root && (!*root || strlen(root) > WH_TREE_PATH / 2))
		return usage_error("--root: '%s' is not a folder", root);
	if (record && (!*record || strlen(record) > WH_TREE_PATH / 2))
		return usage_error("--record: '%s' is not a folder", record);
	if (root && stat(root, &status))
		return fail(errno, "--root %s: %s", root, strerror(errno));
	if (root && !S_ISDIR(status.st_mode))
		return fail(ENOTDIR, "--root %s: %s", root, strerror(ENOTDIR));
	if (root && access(root, R_OK | X_OK))
		return fail(errno, "--root %s: %s", root, strerror(errno));
	if (record && mkdir(record, 0777) && errno != EEXIST)
		return fail(errno, "--record %s: %s", record, strerror(errno));
	return 0;
}

/* ---- GPUDirect ------------------------------------------------------------------------------- */

#define VERBS_SECONDS 2.0

/* Open kernel modules export dma-bufs, closed ones do not. */
static enum wh_said modules_export_dma_buf(const struct wh_tree *tree)
{
	char text[1024];

	if (wh_tree_read(tree, "/proc/driver/nvidia/version", text, sizeof(text)) < 0)
		return WH_UNSAID;
	return strstr(text, "Open Kernel Module") ? WH_YES :
	       strstr(text, "Kernel Module")      ? WH_NO :
						    WH_UNSAID;
}

static enum wh_said modules_have_peermem(const struct wh_tree *tree)
{
	int module = wh_tree_exists(tree, "/sys/module/nvidia_peermem"),
	    peers = wh_tree_exists(tree, "/sys/kernel/mm/memory_peers");

	return !module || !peers                     ? WH_YES :
	       module == -ENOENT && peers == -ENOENT ? WH_NO :
						       WH_UNSAID;
}

static enum wh_said nic_takes_dma_buf(const struct verbs_fact *nic)
{
	return nic->late || nic->dma_buf < 0 ? WH_UNSAID : nic->dma_buf == EBADF ? WH_YES : WH_NO;
}

/* Find out if NICs reach GPU memory, without waking a GPU. */
static int collect_direct(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct wh_tree quiet = *tree;
	struct verbs_facts *facts;
	char path[WH_TREE_PATH];
	size_t rdma = 0;
	int error = 0;

	for (size_t i = 0; i < topology->nic_count; i++)
		rdma += topology->nics[i].rdma == 1;
	if (!rdma || !topology->gpu_count)
		return 0;
	topology->peermem = modules_have_peermem(tree);
	for (size_t i = 0; i < topology->gpu_count; i++)
		topology->gpus[i].dma_buf = modules_export_dma_buf(tree);
	facts = calloc(1, sizeof(*facts));
	if (!facts)
		return -ENOMEM;
	/* A verbs.txt that wherry doctor has recorded has more in it: keep it. */
	snprintf(path, sizeof(path), "%s/verbs.txt", tree->record ? tree->record : "");
	if (tree->record && !access(path, F_OK))
		quiet.record = NULL;
	facts_verbs(&quiet, false, false, VERBS_SECONDS, facts);
	for (int i = 0; i < facts->count; i++)
		for (size_t k = 0; k < topology->nic_count; k++)
			if (strcmp(topology->nics[k].name, facts->nics[i].name) == 0)
				topology->nics[k].dma_buf = nic_takes_dma_buf(&facts->nics[i]);
	if (!facts->count)
		error = wh_topology_add_gap(
			topology, "RDMA", "whether NICs register dma-bufs: %s",
			facts->known && *facts->why ? facts->why :
			wh_tree_is_live(tree)       ? "libibverbs does not report it" :
						      "the recorded tree has no verbs.txt");
	free(facts);
	return error;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

static void gpu_take_cuda(const struct cuda_fact *fact, struct wh_gpu *gpu)
{
	gpu->l2_bytes = fact->l2_bytes;
	/* CUDA knows better than the kernel module's name. */
	if (fact->dma_buf >= 0)
		gpu->dma_buf = fact->dma_buf ? WH_YES : WH_NO;
}

/* The sizes of L2 caches, from CUDA or from a recorded tree. */
static int collect_cuda(const struct wh_tree *tree, struct wh_topology *topology)
{
	struct cuda_facts *facts = calloc(1, sizeof(*facts));
	int error = 0;

	if (!facts)
		return -ENOMEM;
	facts_cuda(tree, facts);
	for (int i = 0; i < facts->count; i++)
		for (size_t k = 0; k < topology->gpu_count; k++)
			if (strcmp(topology->gpus[k].address, facts->gpus[i].address) == 0)
				gpu_take_cuda(&facts->gpus[i], &topology->gpus[k]);
	if (facts->error)
		error = wh_topology_add_gap(topology, "CUDA", "%s", facts->why);
	free(facts);
	return error;
}

int topo_collect(const struct wh_tree *tree, bool cuda, struct wh_topology **out)
{
	struct wh_topology *topology;
	int error = wh_topology_read(tree, &topology);
	if (error)
		return fail(error, "%s", wh_fail_text());
	error = collect_nvml(tree, topology);
	if (!error)
		error = topo_cpu(tree, topology);
	if (!error)
		error = collect_direct(tree, topology);
	if (!error && (cuda || !wh_tree_is_live(tree)))
		error = collect_cuda(tree, topology);
	else if (!error && topology->gpu_count)
		error = wh_topology_add_gap(
			topology, "CUDA", "not asked for the sizes of L2 caches; --cuda starts it");
	if (error) {
		wh_topology_free(topology);
		return fail(ENOMEM, "out of memory");
	}
	*out = topology;
	return 0;
}

int topo_load(const char *path, struct wh_topology **out)
{
	json_error_t wrong;
	char why[128];
	json_t *object;

	errno = 0;
	object = strcmp(path, "-") == 0 ? json_loadf(stdin, 0, &wrong) :
					  json_load_file(path, 0, &wrong);
	if (!object && (wrong.line < 0 ||
			errno == EISDIR)) /* such as a folder: it opens, but cannot be read */
		return fail(EIO, "%s: %s", path, strerror(errno));
	if (!object)
		return fail(EINVAL, "%s:%d: not JSON: %s", path, wrong.line, wrong.text);
	*out = topo_from_json(object, why, sizeof(why));
	json_decref(object);
	return *out ? 0 : fail(EINVAL, "%s: %s", path, why);
}

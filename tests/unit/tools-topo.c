/* SPDX-License-Identifier: Apache-2.0 */
/* Distances and expected speeds on machines built by the test, and topologies as JSON. */
#include "../../tools/field.c"
#include "../../tools/output.c"
#include "../../tools/topo/json.c"
#include "../../tools/topo/text.c"

/* What the rest of the command does is not of interest here. Before cmocka's fail(). */
int fail(int error, const char *format, ...)
{
	(void)format;
	return error;
}

const char *screen_tint(const struct screen *screen, enum tint tint)
{
	(void)tint;
	return screen->color ? "<" : "";
}

const char *screen_plain(const struct screen *screen)
{
	return screen->color ? ">" : "";
}

#include "unit.h"

#include "platform/nvml.h"

/* ---- a machine ------------------------------------------------------------------------------- */

static int add_pci(struct wh_topology *t, const char *address, int parent, const char *root,
		   int node, double speed, int width)
{
	struct wh_pci *pci = WH_TOPOLOGY_ADD(t, pci, pci_count);

	assert_non_null(pci);
	snprintf(pci->address, sizeof(pci->address), "%s", address);
	snprintf(pci->root, sizeof(pci->root), "%s", root);
	pci->parent = parent;
	pci->node = node;
	pci->speed = speed > 8 ? 2.5 : speed;
	pci->speed_most = speed;
	pci->width = pci->width_most = width;
	return (int)t->pci_count - 1;
}

static size_t add_gpu(struct wh_topology *t, int pci)
{
	struct wh_gpu *gpu = WH_TOPOLOGY_ADD(t, gpus, gpu_count);

	assert_non_null(gpu);
	wh_gpu_init(gpu);
	gpu->index = (int)t->gpu_count - 1;
	gpu->pci = pci;
	snprintf(gpu->address, sizeof(gpu->address), "%s", t->pci[pci].address);
	snprintf(gpu->name, sizeof(gpu->name), "a \"GPU\" <%zu>", t->gpu_count);
	return t->gpu_count - 1;
}

static size_t add_nic(struct wh_topology *t, int pci, const char *name, int rdma, double rate)
{
	struct wh_nic *nic = WH_TOPOLOGY_ADD(t, nics, nic_count);

	assert_non_null(nic);
	snprintf(nic->name, sizeof(nic->name), "%s", name);
	snprintf(nic->state, sizeof(nic->state), rdma ? "ACTIVE" : "up");
	nic->rdma = rdma;
	nic->rate = rate;
	nic->pci = pci;
	nic->node = t->pci[pci].node;
	return t->nic_count - 1;
}

static void add_links(struct wh_topology *t, size_t gpu, int count, int peer)
{
	for (int i = 0; i < count; i++) {
		struct wh_nvlink *link = WH_TOPOLOGY_ADD(t, links, link_count);

		assert_non_null(link);
		*link = (struct wh_nvlink){
			.gpu = (int)gpu,
			.link = i,
			.active = 1,
			.version = 7,
			.peer = peer,
			.remote = peer < 0 ? WH_NVML_REMOTE_SWITCH : WH_NVML_REMOTE_GPU,
			.speed = 26.562,
		};
	}
}

static void add_node(struct wh_topology *t, int id)
{
	struct wh_node *node = WH_TOPOLOGY_ADD(t, nodes, node_count);

	assert_non_null(node);
	node->id = id;
	node->memory_bytes = id ? WH_UNKNOWN : UINT64_C(1) << 40;
}

/* Two nodes. Node 0: root port 00 with a switch of 4 lower ports: gpu 0, gpu 1, mlx5_0, and on the
 * fourth a second switch with mlx5_1; another root port of the same host bridge with gpu 2; another
 * host bridge with eth0. Node 1: gpu 3 on a x8 slot. */
static struct wh_topology *machine(void)
{
	struct wh_topology *t = calloc(1, sizeof(*t));
	int root, up, lower, second;

	assert_non_null(t);
	add_node(t, 0);
	add_node(t, 1);
	root = add_pci(t, "0000:00:01.0", -1, "pci0000:00", 0, 32, 16);
	up = add_pci(t, "0000:01:00.0", root, "pci0000:00", 0, 32, 16);
	lower = add_pci(t, "0000:02:00.0", up, "pci0000:00", 0, 32, 16);
	add_gpu(t, add_pci(t, "0000:03:00.0", lower, "pci0000:00", 0, 32, 16));
	lower = add_pci(t, "0000:02:01.0", up, "pci0000:00", 0, 32, 16);
	add_gpu(t, add_pci(t, "0000:04:00.0", lower, "pci0000:00", 0, 32, 16));
	lower = add_pci(t, "0000:02:02.0", up, "pci0000:00", 0, 32, 16);
	add_nic(t, add_pci(t, "0000:05:00.0", lower, "pci0000:00", 0, 32, 16), "mlx5_0", 1, 400);
	lower = add_pci(t, "0000:02:03.0", up, "pci0000:00", 0, 32, 16);
	second = add_pci(t, "0000:06:00.0", lower, "pci0000:00", 0, 16, 16);
	lower = add_pci(t, "0000:07:00.0", second, "pci0000:00", 0, 16, 16);
	add_nic(t, add_pci(t, "0000:08:00.0", lower, "pci0000:00", 0, 16, 16), "mlx5_1", 1, 200);
	root = add_pci(t, "0000:00:02.0", -1, "pci0000:00", 0, 32, 16);
	add_gpu(t, add_pci(t, "0000:09:00.0", root, "pci0000:00", 0, 32, 16));
	root = add_pci(t, "0000:40:01.0", -1, "pci0000:40", 0, 8, 8);
	add_nic(t, add_pci(t, "0000:41:00.0", root, "pci0000:40", 0, 8, 8), "eth0", 0, 25);
	root = add_pci(t, "0000:80:01.0", -1, "pci0000:80", 1, 32, 8);
	add_gpu(t, add_pci(t, "0000:81:00.0", root, "pci0000:80", 1, 32, 16));
	return t;
}

static const char *word(const struct wh_topology *t, enum wh_end_kind kind, size_t one,
			enum wh_end_kind other_kind, size_t other)
{
	static char text[8];
	enum wh_distance distance;
	int links;

	distance = wh_topology_distance(t, (struct wh_end){ kind, one },
					(struct wh_end){ other_kind, other }, &links);
	wh_distance_text(distance, links, text);
	return text;
}

/* ---- distances ------------------------------------------------------------------------------- */

static void distance__by_pci(void **state)
{
	static const struct {
		enum wh_end_kind kind, other_kind;
		size_t one, other;
		const char *word;
	} rows[] = {
		{ WH_END_GPU, WH_END_GPU, 0, 0, "X" },    { WH_END_GPU, WH_END_GPU, 0, 1, "PIX" },
		{ WH_END_GPU, WH_END_GPU, 0, 2, "PHB" },  { WH_END_GPU, WH_END_GPU, 0, 3, "SYS" },
		{ WH_END_GPU, WH_END_NIC, 1, 0, "PIX" },  { WH_END_GPU, WH_END_NIC, 1, 1, "PXB" },
		{ WH_END_GPU, WH_END_NIC, 1, 2, "NODE" }, { WH_END_GPU, WH_END_NIC, 3, 2, "SYS" },
		{ WH_END_NIC, WH_END_NIC, 0, 1, "PXB" },  { WH_END_GPU, WH_END_NODE, 0, 0, "PHB" },
		{ WH_END_GPU, WH_END_NODE, 0, 1, "SYS" }, { WH_END_NODE, WH_END_NODE, 0, 1, "SYS" },
		{ WH_END_GPU, WH_END_GPU, 2, 3, "SYS" },  { WH_END_NODE, WH_END_NODE, 1, 1, "X" },
	};
	struct wh_topology *t = machine();

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_string_equal(
			word(t, rows[i].kind, rows[i].one, rows[i].other_kind, rows[i].other),
			rows[i].word);
		assert_string_equal(
			word(t, rows[i].other_kind, rows[i].other, rows[i].kind, rows[i].one),
			rows[i].word);
	}
	wh_topology_free(t);
}

static void distance__one_node(void **state)
{
	struct wh_topology *t = machine();

	(void)state;
	/* A machine of one node says -1. */
	t->node_count = 1;
	for (size_t i = 0; i < t->pci_count; i++)
		t->pci[i].node = -1;
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 3), "NODE");
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_NODE, 0), "PHB");
	wh_topology_free(t);
}

static void distance__nvlink(void **state)
{
	struct wh_topology *t = machine();
	struct wh_gpu_pair *pair;

	(void)state;
	add_links(t, 0, 18, -1);
	add_links(t, 3, 17, -1); /* one is down */
	add_links(t, 1, 4, 2);
	add_links(t, 2, 4, 1);
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 3), "NV17");
	assert_string_equal(word(t, WH_END_GPU, 3, WH_END_GPU, 0), "NV17");
	assert_string_equal(word(t, WH_END_GPU, 1, WH_END_GPU, 2), "NV4");
	/* Links to other GPUs do not lead to this one. */
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 1), "PIX");
	/* Switches that are not joined: NVML says so. */
	pair = WH_TOPOLOGY_ADD(t, pairs, pair_count);
	*pair = (struct wh_gpu_pair){ .from = 0, .to = 3, .ancestor = 40, .nvlink = 5 };
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 3), "NODE");
	pair->nvlink = 0;
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 3), "NV17");
	wh_topology_free(t);
}

/* What a file from elsewhere may hold: bridges above each other in a circle. */
static void distance__circle(void **state)
{
	struct wh_topology *t = machine();
	int where;

	(void)state;
	t->pci[0].parent = 1;
	assert_string_equal(word(t, WH_END_GPU, 0, WH_END_GPU, 3), "SYS");
	assert_true(wh_pcie_path(t, t->gpus[0].pci, &where) > 60);
	t->pci[5].parent = 5;
	word(t, WH_END_GPU, 0, WH_END_GPU, 1);
	wh_topology_free(t);
}

static void nic__of_gpu(void **state)
{
	struct wh_topology *t = machine();

	(void)state;
	assert_int_equal(wh_topology_nic_of(t, 0), 0); /* nearest */
	snprintf(t->nics[0].state, sizeof(t->nics[0].state), "DOWN");
	assert_int_equal(wh_topology_nic_of(t, 0), 1);
	snprintf(t->nics[1].state, sizeof(t->nics[1].state), "DOWN");
	assert_int_equal(wh_topology_nic_of(t, 0), 2); /* no RDMA, but it is up */
	/* Equal ones are dealt out. */
	t->nics[1] = t->nics[0];
	snprintf(t->nics[0].state, sizeof(t->nics[0].state), "ACTIVE");
	snprintf(t->nics[1].state, sizeof(t->nics[1].state), "ACTIVE");
	assert_int_equal(wh_topology_nic_of(t, 0), 0);
	assert_int_equal(wh_topology_nic_of(t, 1), 1);
	t->nic_count = 0;
	assert_int_equal(wh_topology_nic_of(t, 0), -1);
	wh_topology_free(t);
}

/* All RDMA NICs that are up and as near as the nearest. */
static void nic__rdma_by(void **state)
{
	struct wh_topology *t = machine();
	const struct wh_end gpu = { WH_END_GPU, 0 }, node = { WH_END_NODE, 0 };

	(void)state;
	assert_int_equal(wh_topology_rdma_distance(t, gpu), WH_PIX);
	assert_true(wh_topology_rdma_by(t, gpu, 0));
	assert_false(wh_topology_rdma_by(t, gpu, 1)); /* it is further */
	assert_int_equal(wh_topology_rdma_distance(t, node), WH_PHB);
	t->nics[1] = t->nics[0];
	assert_true(wh_topology_rdma_by(t, gpu, 0) && wh_topology_rdma_by(t, gpu, 1));
	assert_true(wh_topology_rdma_by(t, node, 0) && wh_topology_rdma_by(t, node, 1));
	snprintf(t->nics[0].state, sizeof(t->nics[0].state), "DOWN");
	assert_false(wh_topology_rdma_by(t, gpu, 0));
	assert_true(wh_topology_rdma_by(t, gpu, 1));
	t->nics[1].rdma = 0;
	assert_int_equal(wh_topology_rdma_distance(t, gpu), WH_FAR);
	assert_false(wh_topology_rdma_by(t, gpu, 1));
	wh_topology_free(t);
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void near(double value, double wanted)
{
	if (!(fabs(value - wanted) <= wanted / 100))
		fail_msg("%f is not about %f", value, wanted);
}

static void pcie__raw(void **state)
{
	(void)state;
	near(wh_pcie_raw(2.5, 16), 4);
	near(wh_pcie_raw(5, 8), 4);
	near(wh_pcie_raw(8, 16), 15.75);
	near(wh_pcie_raw(32, 16), 63.0);
	near(wh_pcie_raw(64, 16), 121);
	assert_true(isnan(wh_pcie_raw(NAN, 16)) && isnan(wh_pcie_raw(32, -1)));
	near(wh_pcie_speed(4), 16);
	assert_true(isnan(wh_pcie_speed(0)) && isnan(wh_pcie_speed(7)) && isnan(wh_pcie_speed(-1)));
}

static double expected(const struct wh_topology *t, enum wh_end_kind kind, size_t one,
		       enum wh_end_kind other_kind, size_t other, const char *route)
{
	struct wh_end a = { kind, one }, b = { other_kind, other };
	struct wh_expected out, back;

	wh_topology_expect(t, a, b, &out);
	wh_topology_expect(t, b, a, &back);
	if (route)
		assert_string_equal(out.route, route);
	else
		assert_null(out.route);
	assert_true((isnan(out.speed) && isnan(back.speed)) || out.speed == back.speed);
	assert_string_equal(out.limit, back.limit);
	assert_true(*out.limit);
	return out.speed;
}

/* Whether a NIC reaches a GPU's memory: what is not known is neither route. */
static void expect__direct(void **state)
{
	struct wh_topology *t = machine();

	(void)state;
	assert_int_equal(wh_topology_direct(t, 0, 0), WH_UNSAID);
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 0, "GPUDirect RDMA or staged"), 47.5);
	t->gpus[0].dma_buf = WH_YES;
	assert_int_equal(wh_topology_direct(t, 0, 0), WH_UNSAID);
	t->nics[0].dma_buf = WH_YES;
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 0, "GPUDirect RDMA"), 47.5);
	/* Of this pair, and of no other. */
	assert_int_equal(wh_topology_direct(t, 1, 0), WH_UNSAID);
	assert_int_equal(wh_topology_direct(t, 0, 1), WH_UNSAID);
	/* There is still the other way, of which nothing is known. */
	t->nics[0].dma_buf = WH_NO;
	assert_int_equal(wh_topology_direct(t, 0, 0), WH_UNSAID);
	t->peermem = WH_NO;
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 0, "RDMA, staged"), 47.5);
	t->gpus[1].dma_buf = WH_NO;
	near(expected(t, WH_END_GPU, 1, WH_END_NIC, 0, "RDMA, staged"), 47.5);
	t->peermem = WH_YES;
	near(expected(t, WH_END_GPU, 1, WH_END_NIC, 0, "GPUDirect RDMA"), 47.5);
	/* Of a NIC that is not known to do RDMA it is not assumed. */
	t->nics[0].rdma = -1;
	near(expected(t, WH_END_GPU, 1, WH_END_NIC, 0, "TCP, staged"), 47);
	wh_topology_free(t);
}

/* Against what was measured on H200s: 396 GB/s by 18 NVLinks, 54.5 by PCIe 5.0 x16. */
static void expect__routes(void **state)
{
	struct wh_topology *t = machine();
	struct wh_gpu_pair *pair;

	(void)state;
	add_links(t, 0, 18, -1);
	add_links(t, 1, 18, -1);
	near(expected(t, WH_END_GPU, 0, WH_END_GPU, 1, "NVLink"), 396);
	near(expected(t, WH_END_GPU, 0, WH_END_NODE, 0, "pinned copy"), 54.2);
	near(expected(t, WH_END_GPU, 3, WH_END_NODE, 0, "pinned copy"), 27.1);
	near(expected(t, WH_END_GPU, 2, WH_END_GPU, 3, "host staging"), 27.1);
	for (int i = 0; i < 2; i++) {
		pair = WH_TOPOLOGY_ADD(t, pairs, pair_count);
		*pair = (struct wh_gpu_pair){ .from = i ? 3 : 2, .to = i ? 2 : 3, .ancestor = 50 };
	}
	near(expected(t, WH_END_GPU, 2, WH_END_GPU, 3, "PCIe peer"), 27.1);
	t->peermem = WH_YES;
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 0, "GPUDirect RDMA"), 47.5);
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 1, "GPUDirect RDMA"), 23.75);
	near(expected(t, WH_END_GPU, 0, WH_END_NIC, 2, "TCP, staged"), 2.94);
	near(expected(t, WH_END_NIC, 2, WH_END_NODE, 0, "TCP"), 2.94);
	/* The port could do more than its slot. */
	t->nics[1].rate = 800;
	near(expected(t, WH_END_NIC, 1, WH_END_NODE, 0, "RDMA"), 27.1);
	t->nics[1].rate = NAN;
	assert_true(isnan(expected(t, WH_END_NIC, 1, WH_END_NODE, 0, "RDMA")));
	assert_true(isnan(expected(t, WH_END_NIC, 0, WH_END_NIC, 1, NULL)));
	assert_true(isnan(expected(t, WH_END_NODE, 0, WH_END_NODE, 1, "memory copy")));
	assert_true(isnan(expected(t, WH_END_GPU, 0, WH_END_GPU, 0, "copy in the GPU")));
	/* NVML knows better what the GPU's own link can do. */
	t->gpus[2].pcie_generation_most = 3;
	t->gpus[2].pcie_width_most = 16;
	near(expected(t, WH_END_GPU, 2, WH_END_NODE, 0, "pinned copy"), 13.5);
	snprintf(t->gpus[0].problem, sizeof(t->gpus[0].problem), "lost");
	assert_true(isnan(expected(t, WH_END_GPU, 0, WH_END_GPU, 1, NULL)));
	wh_topology_free(t);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json__round_trip(void **state)
{
	struct wh_topology *t = machine(), *back;
	json_t *first, *second;
	char why[128] = "";

	(void)state;
	add_links(t, 0, 18, -1);
	add_links(t, 1, 4, 2);
	wh_topology_add_gap(t, "NVML", "%s", "not there");
	*(struct wh_disk *)WH_TOPOLOGY_ADD(t, disks, disk_count) =
		(struct wh_disk){ .name = "nvme0n1", .size_bytes = 512, .pci = 3, .node = -1 };
	*(struct wh_cpu_cache *)WH_TOPOLOGY_ADD(t, caches, cache_count) =
		(struct wh_cpu_cache){ 3, "unified", WH_UNKNOWN, 2 };
	first = topo_to_json(t);
	back = topo_from_json(first, why, sizeof(why));
	if (!back)
		fail_msg("%s", why);
	second = topo_to_json(back);
	assert_true(json_equal(first, second));
	assert_int_equal(back->link_count, 22);
	assert_int_equal(json_array_size(json_object_get(first, "matrix")), 81);
	json_decref(first);
	json_decref(second);
	wh_topology_free(t);
	wh_topology_free(back);
}

static void json__refused(void **state)
{
	static const char *const rows[][2] = {
		{ "{}", "not what wherry topo" },
		{ "[]", "not what wherry topo" },
		{ "{\"schema\": 2}", "not what wherry topo" },
		{ "{\"schema\": 1}", "no \"cpu\"" },
		{ "{\"schema\": 1, \"cpu\": 3}", "cpu: expected an object" },
		{ "{\"schema\": 1, \"cpu\": {\"cores\": -1}}", "cpu: cores" },
		{ "{\"schema\": 1, \"cpu\": {}, \"host\": 7}", "host" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpus\": {}}", "gpus is not an array" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpus\": [3]}", "gpus: expected an object" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpus\": [{\"pci\": 0}]}",
		  "gpus: pci is 0, of 0" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpus\": [{\"pci\": 3000000000}]}", "gpus: pci" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpus\": [{\"memory_bytes\": -5}]}",
		  "memory_bytes" },
		{ "{\"schema\": 1, \"cpu\": {}, \"pci\": [{\"parent\": 1}]}",
		  "pci: parent is 1, of 1" },
		{ "{\"schema\": 1, \"cpu\": {}, \"nvlinks\": [{}]}", "nvlinks: gpu is -1" },
		{ "{\"schema\": 1, \"cpu\": {}, \"gpu_pairs\": [{\"from\": 0}]}",
		  "gpu_pairs: from" },
		{ "{\"schema\": 1, \"cpu\": {}, \"nics\": [{\"rate_gbit_per_s\": 1e9}]}", "rate" },
		{ "{\"schema\": 1, \"cpu\": {}, \"nics\": [{\"rdma\": 1}]}", "rdma" },
		{ "{\"schema\": 1, \"cpu\": {}, \"nics\": [{\"name\": "
		  "\"0123456789012345678901234567890123456789012345678901234567890123\"}]}",
		  "name" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		json_t *object = json_loads(rows[i][0], 0, NULL);
		char why[128] = "";

		assert_non_null(object);
		assert_null(topo_from_json(object, why, sizeof(why)));
		if (!strstr(why, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], why);
		json_decref(object);
	}
}

static void size__text(void **state)
{
	char text[32];

	(void)state;
	topo_size(text, sizeof(text), WH_UNKNOWN);
	assert_string_equal(text, "-");
	topo_size(text, sizeof(text), 512);
	assert_string_equal(text, "512 B");
	topo_size(text, sizeof(text), UINT64_C(3) << 39);
	assert_string_equal(text, "1.5 TiB");
	topo_size(text, sizeof(text), UINT64_C(256) << 30);
	assert_string_equal(text, "256 GiB");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distance__by_pci), cmocka_unit_test(distance__one_node),
		cmocka_unit_test(distance__nvlink), cmocka_unit_test(distance__circle),
		cmocka_unit_test(nic__of_gpu),      cmocka_unit_test(nic__rdma_by),
		cmocka_unit_test(pcie__raw),        cmocka_unit_test(expect__routes),
		cmocka_unit_test(expect__direct),   cmocka_unit_test(json__round_trip),
		cmocka_unit_test(json__refused),    cmocka_unit_test(size__text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

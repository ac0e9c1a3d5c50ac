/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts as JSON: what is read, and the one line that says what is wrong. */
#include "../../tools/plan/read.c"

#include "unit.h"

#define TENSORS                                                                                    \
	"'tensors': {'w': {'dtype': 'f32', 'shape': [8, 6]}, 's': {'dtype': 'bf16', 'shape': []}}"

/* JSON with single quotes. */
static int read_text(const char *text, struct wh_layout **out)
{
	char *json = strdup(text);
	json_error_t error;
	json_t *object;
	int result;

	assert_non_null(json);
	for (char *at = json; *at; at++)
		if (*at == '\'')
			*at = '"';
	object = json_loads(json, JSON_REJECT_DUPLICATES, &error);
	if (!object)
		fail_msg("%s: %s", json, error.text);
	result = plan_layout_from_json(object, "L", out);
	json_decref(object);
	free(json);
	return result;
}

/* One engine with one slice. */
static int read_slice(const char *slice, struct wh_layout **out)
{
	char json[1024];

	snprintf(json, sizeof(json),
		 "{'schema': 1, " TENSORS ", 'engines': {'e': {'gpu': 9, 'regions': {'a b': 192, "
		 "'r': 400}, 'slices': ['%s']}}}",
		 slice);
	return read_text(json, out);
}

static void slice__good(void **state)
{
	static const struct {
		const char *text;
		uint64_t box[4], offset, strides[2];
		uint32_t region;
		bool strided;
	} rows[] = {
		{ "w@a b", { 0, 0, 8, 6 }, 0, { 24, 4 }, 0, false },
		{ "w[:,:]@r+208", { 0, 0, 8, 6 }, 208, { 24, 4 }, 1, false },
		{ " w [ 2:4 , 1 : ] @ a b + 8 ", { 2, 1, 4, 6 }, 8, { 20, 4 }, 0, false },
		{ "w[:3,5:6]@r+1/100,7", { 0, 5, 3, 6 }, 1, { 100, 7 }, 1, true },
		{ "w[2:4,:] @ r / 4, 8", { 2, 0, 4, 6 }, 0, { 4, 8 }, 1, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t strides[WH_LAYOUT_DIMS];
		const struct wh_slice *slice;
		struct wh_layout *layout;

		if (read_slice(rows[i].text, &layout))
			fail_msg("%s: %s", rows[i].text, wh_fail_text());
		slice = &layout->slices[0];
		assert_memory_equal(wh_slice_box(layout, slice), rows[i].box, sizeof(rows[i].box));
		assert_int_equal(slice->offset, rows[i].offset);
		assert_int_equal(slice->region, rows[i].region);
		assert_int_equal(slice->strided, rows[i].strided);
		wh_slice_strides(layout, slice, strides);
		assert_memory_equal(strides, rows[i].strides, sizeof(rows[i].strides));
		/* Nothing was said of its host: that is the engine's own, and the NIC the GPU's. */
		assert_string_equal(layout->hosts[layout->engines[0].host].name.text, "e");
		assert_int_equal(layout->engines[0].nic, 1);
		wh_layout_free(layout);
	}
}

static void slice__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "x@r", "is of no tensor of the layout" },
		{ "", "is of no tensor of the layout" },
		{ "w", "has no '@ REGION' behind its ranges" },
		{ "w[:,:]", "has no '@ REGION' behind its ranges" },
		{ "w[0:1]@r", "has fewer ranges than its tensor has dimensions" },
		{ "w[:,:,:]@r",
		  "has more ranges than its tensor has dimensions, or no ']' behind" },
		{ "w[:,:@r", "has more ranges than its tensor has dimensions, or no ']' behind" },
		{ "s[:]@r", "has more ranges than its tensor has dimensions, or no ']' behind" },
		{ "w[1,:]@r", "has a range that is not BEGIN:END" },
		{ "w[-1:2,:]@r", "has a range that is not BEGIN:END" },
		{ "w[0:99999999999999999999,:]@r", "has a range that is not BEGIN:END" },
		{ "w[0:2 :]@r", "has a range that is not BEGIN:END" },
		{ "w@q", "is in no region of its engine" },
		{ "w@", "is in no region of its engine" },
		{ "w@r+", "has an offset that is no number" },
		{ "w@r+-4", "has an offset that is no number" },
		{ "w@r/24", "has fewer strides than its tensor has dimensions" },
		{ "w@r/24,x", "has a stride that is no number" },
		{ "w@r/24,4,4", "has something behind its end" },
		{ "w@r+4 5", "has something behind its end" },
		{ "s@r/4", "has strides, and its tensor no dimensions" },
		{ "w[2:2,:]@r",
		  "L: tensor 'w' of engine 'e': range 2:2 of dimension 0, whose size" },
		{ "w[2:9,:]@r",
		  "L: tensor 'w' of engine 'e': range 2:9 of dimension 0, whose size" },
		{ "w@a b+1", "ends beyond region 'a b': offset 1, region 192 bytes" },
		{ "w@r+9223372036854775807", "ends beyond region 'r'" },
		{ "w@r/9223372036854775807,4", "ends beyond region 'r'" },
		{ "w@r/20,4", "L: tensor 'w' of engine 'e': its strides let elements overlap" },
		{ "w@r/24,3", "its strides let elements overlap" },
		{ "w@r/0,4", "its strides let elements overlap" },
	};
	struct wh_layout *layout = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int error = read_slice(rows[i][0], &layout);

		assert_true(error == -EINVAL || error == -ERANGE);
		assert_null(layout);
		if (!strstr(wh_fail_text(), rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wh_fail_text());
	}
}

#define ENGINES "'engines': {'e': {'regions': {'r': 192}, 'slices': ['w@r']}}"

static void layout__wrong(void **state)
{
	static const char *const rows[][2] = {
		{ "[]", "L: no layout: " },
		{ "{'schema': 1, " TENSORS "}", "L: no layout: " },
		{ "{'schema': 2, " TENSORS ", " ENGINES "}", "L: schema 2, this version reads 1" },
		{ "{'schema': 1, 'more': 1, " TENSORS ", " ENGINES "}", "more" },
		{ "{'schema': 1, 'tensors': [], " ENGINES "}", "tensors or engines are no object" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'q4', 'shape': [1]}}, " ENGINES "}",
		  "L: tensor 'w': its dtype is unknown, and it has no item_bytes" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'f32', 'shape': [1], 'item_bytes': "
		  "2}}, " ENGINES "}",
		  "L: tensor 'w': its item_bytes are not those of its dtype" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'f32', 'shape': [0]}}, " ENGINES "}",
		  "a size of its shape is not positive" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'f32', 'shape': "
		  "[1,1,1,1,1,1,1,1,1]}}, " ENGINES "}",
		  "its shape is no list of at most 8 sizes" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'f32', 'shape': [4294967296, "
		  "4294967296]}}, " ENGINES "}",
		  "or it has more than 2^63 bytes" },
		{ "{'schema': 1, 'tensors': {'w': {'dtype': 'x', 'item_bytes': 5000, 'shape': "
		  "[]}}, " ENGINES "}",
		  "an element has 5000 bytes, not 1 to 1024" },
		{ "{'schema': 1, 'topology': {'nics': 0}, " TENSORS ", " ENGINES "}",
		  "host 'e' has 0 NICs, not 1 to 1024" },
		{ "{'schema': 1, 'topology': {'nic_GBps': -1}, " TENSORS ", " ENGINES "}",
		  "host 'e': a rate is not 1e-6 to 1e6 GB/s" },
		{ "{'schema': 1, 'topology': {'nic_us': -1}, " TENSORS ", " ENGINES "}",
		  "host 'e': a latency is not 0 to 1e6 us" },
		{ "{'schema': 1, 'topology': {'hosts': {'h': {'nix': 3}}}, " TENSORS ", " ENGINES
		  "}",
		  "L: topology of 'h': 1 object item(s) left unpacked: nix" },
		{ "{'schema': 1, 'topology': {'hosts': {'h': {'hosts': {}}}}, " TENSORS ", " ENGINES
		  "}",
		  "a host has no hosts" },
		{ "{'schema': 1, " TENSORS ", 'engines': {'e': {'nic': 8, 'regions': {}, 'slices': "
		  "[]}}}",
		  "L: engine 'e' uses NIC 8, host 'e' has 8" },
		{ "{'schema': 1, " TENSORS
		  ", 'engines': {'e': {'gpu': -1, 'regions': {}, 'slices': "
		  "[]}}}",
		  "L: engine 'e': its gpu is no number, and not null" },
		{ "{'schema': 1, " TENSORS ", 'engines': {'e': {'gpu': 1024, 'regions': {}, "
		  "'slices': []}}}",
		  "L: engine 'e': GPU 1024 is not 0 to 1023" },
		{ "{'schema': 1, " TENSORS
		  ", 'engines': {'e': {'regions': {'r': 0}, 'slices': []}}}",
		  "L: engine 'e': a region's size is not positive" },
		{ "{'schema': 1, " TENSORS ", 'engines': {'e': {'regions': {'r': 9}, 'slices': "
		  "[1]}}}",
		  "L: engine 'e': a slice is no string" },
		{ "{'schema': 1, " TENSORS ", 'engines': {'': {'regions': {}, 'slices': []}}}",
		  "L: a host's name is not 1 to 255 bytes of UTF-8" },
	};
	struct wh_layout *layout = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_true(read_text(rows[i][0], &layout) < 0);
		assert_null(layout);
		if (!strstr(wh_fail_text(), rows[i][1]))
			fail_msg("%s: %s", rows[i][0], wh_fail_text());
	}
}

/* What holds for all hosts, for one, and for none in particular. */
static void topology__rates(void **state)
{
	struct wh_layout *layout;
	uint32_t a, b;

	(void)state;
	assert_int_equal(
		read_text("{'schema': 1, 'topology': {'nics': 2, 'nic_GBps': 12.5, 'hosts': "
			  "{'a': {'nic_us': 3}}}, " TENSORS ", 'engines': {'e': {'host': "
			  "'b', 'regions': {}, 'slices': []}}}",
			  &layout),
		0);
	assert_true(wh_layout_find_host(layout, "a", 1, &a));
	assert_true(wh_layout_find_host(layout, "b", 1, &b));
	assert_int_equal(layout->hosts[a].nics, 2);
	assert_true(layout->hosts[a].nic_rate == 12.5 && layout->hosts[b].nic_rate == 12.5);
	assert_true(layout->hosts[a].nic_latency == 3);
	assert_true(layout->hosts[b].nic_latency == wh_host_typical.nic_latency);
	assert_int_equal(layout->engines[0].gpu, WH_LAYOUT_NO_GPU);
	wh_layout_free(layout);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(slice__good),
		cmocka_unit_test(slice__wrong),
		cmocka_unit_test(layout__wrong),
		cmocka_unit_test(topology__rates),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

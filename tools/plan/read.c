/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts from JSON. A file is not trusted: the layout checks what is added, and keys that mean
 * nothing are refused, because they may be typing errors. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "util/error.h"
#include "util/text.h"

/* ---- slices ---------------------------------------------------------------------------------- */

static const char *skip(const char *text)
{
	return text + strspn(text, " ");
}

/* Digits at *text, which then stands behind them and the spaces that follow. */
static bool take_number(const char **text, uint64_t *out)
{
	const char *at = skip(*text);
	uint64_t value = 0;

	if (*at < '0' || *at > '9')
		return false;
	for (; *at >= '0' && *at <= '9'; at++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
			return false;
	*text = skip(at);
	*out = value;
	return true;
}

/* The length of a name that ends before one of `ends`, or with the text, without spaces there. */
static size_t name_length(const char *text, const char *ends)
{
	size_t length = strcspn(text, ends);

	while (length && text[length - 1] == ' ')
		length--;
	return length;
}

/* "4:8", "4:", ":8", ":" */
static bool take_range(const char **text, uint64_t size, uint64_t *begin, uint64_t *end)
{
	*begin = 0;
	*end = size;
	*text = skip(*text);
	if (**text != ':' && !take_number(text, begin))
		return false;
	if (**text != ':')
		return false;
	*text = skip(*text + 1);
	return *text[0] < '0' || *text[0] > '9' || take_number(text, end);
}

/* "[0:4, :]", or nothing: all of the tensor. NULL, or what is wrong. */
static const char *take_box(const char **text, const struct wh_tensor *tensor,
			    struct wh_slice_desc *out)
{
	bool given = **text == '[';

	if (given)
		*text = skip(*text + 1);
	for (uint32_t i = 0; i < tensor->dims; i++) {
		out->end[i] = tensor->shape[i];
		if (!given)
			continue;
		if (i && **text != ',')
			return **text == ']' ? "has fewer ranges than its tensor has dimensions" :
					       "has a range that is not BEGIN:END";
		*text += i > 0;
		if (!take_range(text, tensor->shape[i], &out->begin[i], &out->end[i]))
			return "has a range that is not BEGIN:END";
	}
	if (given && **text != ']')
		return "has more ranges than its tensor has dimensions, or no ']' behind them";
	*text = skip(*text + given);
	return NULL;
}

/* NULL, or what is wrong. */
static const char *slice_parse(const struct wh_layout *layout, const char *text,
			       struct wh_slice_desc *out)
{
	size_t length = name_length(text, "[@");
	const struct wh_tensor *tensor;
	const char *wrong;

	if (!wh_layout_find_tensor(layout, text, length, &out->tensor))
		return "is of no tensor of the layout";
	tensor = &layout->tensors[out->tensor];
	text = skip(text + length);
	wrong = take_box(&text, tensor, out);
	if (wrong)
		return wrong;
	if (*text != '@')
		return "has no '@ REGION' behind its ranges";
	text = skip(text + 1);
	length = name_length(text, "+/");
	if (!wh_layout_find_region(layout, out->engine, text, length, &out->region))
		return "is in no region of its engine";
	text = skip(text + length);
	if (*text == '+') {
		text++;
		if (!take_number(&text, &out->offset))
			return "has an offset that is no number";
	}
	if (*text == '/') {
		out->strided = true;
		for (uint32_t i = 0; i < tensor->dims; i++) {
			if (*text != (i ? ',' : '/'))
				return "has fewer strides than its tensor has dimensions";
			text++;
			if (!take_number(&text, &out->stride[i]))
				return "has a stride that is no number";
		}
		if (!tensor->dims)
			return "has strides, and its tensor no dimensions";
	}
	return *text ? "has something behind its end" : NULL;
}

int plan_slice_parse(const struct wh_layout *layout, uint32_t engine, const char *text,
		     struct wh_slice_desc *out)
{
	const char *wrong;

	memset(out, 0, sizeof(*out));
	out->engine = engine;
	wrong = slice_parse(layout, skip(text), out);
	if (wrong)
		return wh_fail(EINVAL, "%s: engine '%.50s': slice '%.99s' %s", layout->label,
			       layout->engines[engine].name.text, text, wrong);
	return 0;
}

/* ---- objects --------------------------------------------------------------------------------- */

static int refuse(const struct wh_layout *layout, const char *what, const char *name,
		  const char *why)
{
	return wh_fail(EINVAL, "%s: %s '%.60s': %.99s", layout->label, what, name, why);
}

/* What is not given stays as it is. */
static int host_read(const struct wh_layout *layout, json_t *object, const char *name,
		     json_t **hosts, struct wh_host *host)
{
	json_error_t error;
	int nics = (int)host->nics;

	if (json_unpack_ex(object, &error, JSON_STRICT,
			   "{s?i, s?F, s?F, s?F, s?F, s?F, s?F, s?F, s?F, s?o}", "nics", &nics,
			   "nic_GBps", &host->nic_rate, "nic_us", &host->nic_latency, "uplink_GBps",
			   &host->uplink_rate, "gpu_GBps", &host->gpu_rate, "gpu_us",
			   &host->gpu_latency, "copy_GBps", &host->copy_rate, "memory_GBps",
			   &host->memory_rate, "engine_GBps", &host->engine_rate, "hosts", hosts))
		return refuse(layout, "topology of", name, error.text);
	host->nics = nics < 0 ? 0 : (uint32_t)nics;
	return 0;
}

/* `usual`: what holds for hosts of which the file says nothing. */
static int topology_read(struct wh_layout *layout, json_t *topology, struct wh_host *usual)
{
	json_t *hosts = NULL, *object, *inner;
	const char *name;
	int error = topology ? host_read(layout, topology, "all hosts", &hosts, usual) : 0;

	if (error || !hosts)
		return error;
	if (!json_is_object(hosts))
		return refuse(layout, "topology of", "hosts", "not an object of hosts");
	json_object_foreach(hosts, name, object)
	{
		struct wh_host host = *usual;

		inner = NULL;
		error = host_read(layout, object, name, &inner, &host);
		if (!error && inner)
			error = refuse(layout, "topology of", name, "a host has no hosts");
		if (!error)
			error = wh_layout_add_host(layout, name, &host, NULL);
		if (error)
			return error;
	}
	return 0;
}

static int tensor_read(struct wh_layout *layout, const char *name, json_t *object)
{
	struct wh_tensor tensor = { .item = 0 };
	json_t *shape, *value;
	const char *type = "";
	json_error_t error;
	int item = 0;
	size_t i;

	if (json_unpack_ex(object, &error, JSON_STRICT, "{s:s, s:o, s?i}", "dtype", &type, "shape",
			   &shape, "item_bytes", &item))
		return refuse(layout, "tensor", name, error.text);
	if (strlen(type) >= sizeof(tensor.type) || !wh_text_is_clean(type, strlen(type)))
		return refuse(layout, "tensor", name, "its dtype is too long");
	if (!json_is_array(shape) || json_array_size(shape) > WH_LAYOUT_DIMS)
		return refuse(layout, "tensor", name, "its shape is no list of at most 8 sizes");
	snprintf(tensor.type, sizeof(tensor.type), "%s", type);
	tensor.item = wh_layout_item_bytes(type);
	if (tensor.item && item && tensor.item != (uint32_t)item)
		return refuse(layout, "tensor", name, "its item_bytes are not those of its dtype");
	if (!tensor.item && item <= 0)
		return refuse(layout, "tensor", name,
			      "its dtype is unknown, and it has no item_bytes");
	tensor.item = tensor.item ? tensor.item : (uint32_t)item;
	tensor.dims = (uint32_t)json_array_size(shape);
	json_array_foreach(shape, i, value)
	{
		if (!json_is_integer(value) || json_integer_value(value) <= 0)
			return refuse(layout, "tensor", name,
				      "a size of its shape is not positive");
		tensor.shape[i] = (uint64_t)json_integer_value(value);
	}
	return wh_layout_add_tensor(layout, name, &tensor, NULL);
}

static int contents_read(struct wh_layout *layout, uint32_t engine, json_t *regions, json_t *slices)
{
	const char *name = layout->engines[engine].name.text, *region;
	json_t *value;
	int error;
	size_t i;

	if (!json_is_object(regions) || !json_is_array(slices))
		return refuse(layout, "engine", name,
			      "regions are no object, or slices are no list");
	json_object_foreach(regions, region, value)
	{
		if (!json_is_integer(value) || json_integer_value(value) <= 0)
			return refuse(layout, "engine", name, "a region's size is not positive");
		error = wh_layout_add_region(layout, engine, region,
					     (uint64_t)json_integer_value(value), NULL);
		if (error)
			return error;
	}
	json_array_foreach(slices, i, value)
	{
		struct wh_slice_desc slice;

		if (!json_is_string(value))
			return refuse(layout, "engine", name, "a slice is no string");
		error = plan_slice_parse(layout, engine, json_string_value(value), &slice);
		if (!error)
			error = wh_layout_add_slice(layout, &slice, NULL);
		if (error)
			return error;
	}
	return 0;
}

static int engine_read(struct wh_layout *layout, const char *name, json_t *object,
		       const struct wh_host *usual)
{
	struct wh_layout_engine engine = { .gpu = WH_LAYOUT_NO_GPU };
	json_t *regions, *slices, *gpu = NULL;
	const char *host = name;
	json_error_t wrong;
	int nic = -1, error;
	uint32_t index;

	if (json_unpack_ex(object, &wrong, JSON_STRICT, "{s?s, s?o, s?i, s:o, s:o}", "host", &host,
			   "gpu", &gpu, "nic", &nic, "regions", &regions, "slices", &slices))
		return refuse(layout, "engine", name, wrong.text);
	if (gpu && !json_is_null(gpu)) {
		if (!json_is_integer(gpu) || json_integer_value(gpu) < 0 ||
		    json_integer_value(gpu) > INT_MAX)
			return refuse(layout, "engine", name, "its gpu is no number, and not null");
		engine.gpu = (int32_t)json_integer_value(gpu);
	}
	if (!wh_layout_find_host(layout, host, strlen(host), &engine.host)) {
		error = wh_layout_add_host(layout, host, usual, &engine.host);
		if (error)
			return error;
	}
	engine.nic = nic >= 0        ? (uint32_t)nic :
		     engine.gpu >= 0 ? (uint32_t)engine.gpu % layout->hosts[engine.host].nics :
				       0;
	error = wh_layout_add_engine(layout, name, &engine, &index);
	return error ? error : contents_read(layout, index, regions, slices);
}

static int layout_read(struct wh_layout *layout, json_t *object)
{
	json_t *topology = NULL, *tensors, *engines, *value;
	struct wh_host usual = wh_host_typical;
	json_error_t wrong;
	const char *name;
	int schema = 0, error;

	if (json_unpack_ex(object, &wrong, JSON_STRICT, "{s:i, s?o, s:o, s:o}", "schema", &schema,
			   "topology", &topology, "tensors", &tensors, "engines", &engines))
		return wh_fail(EINVAL, "%s: no layout: %.120s", layout->label, wrong.text);
	if (schema != 1)
		return wh_fail(EINVAL, "%s: schema %d, this version reads 1", layout->label,
			       schema);
	if (!json_is_object(tensors) || !json_is_object(engines))
		return wh_fail(EINVAL, "%s: tensors or engines are no object", layout->label);
	error = topology_read(layout, topology, &usual);
	json_object_foreach(tensors, name, value) if (!error) error =
		tensor_read(layout, name, value);
	json_object_foreach(engines, name, value) if (!error) error =
		engine_read(layout, name, value, &usual);
	return error;
}

int plan_layout_from_json(json_t *object, const char *label, struct wh_layout **out)
{
	struct wh_layout *layout = wh_layout_new(label);
	int error = layout ? layout_read(layout, object) : wh_fail(ENOMEM, "no memory");

	if (error)
		wh_layout_free(layout);
	else
		*out = layout;
	return error;
}

/* A long path's end says more than its beginning. */
#define LABEL 40

int plan_layout_read(const char *path, struct wh_layout **out)
{
	size_t length = strlen(path);
	char label[LABEL + 4];
	json_error_t wrong;
	json_t *object;
	int error;

	snprintf(label, sizeof(label), "%s%s", length > LABEL ? "..." : "",
		 length > LABEL ? path + length - (LABEL - 3) : path);
	wh_text_clean(label);
	errno = 0;
	object = json_load_file(path, JSON_REJECT_DUPLICATES, &wrong);
	if (!object && wrong.line < 0)
		return wh_fail(errno ? errno : EIO, "cannot read '%.150s': %s", path,
			       strerror(errno ? errno : EIO));
	if (!object)
		return wh_fail(EINVAL, "%s: line %d is no JSON: %.120s", label, wrong.line,
			       wrong.text);
	error = plan_layout_from_json(object, label, out);
	json_decref(object);
	return error;
}

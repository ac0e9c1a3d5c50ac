/* SPDX-License-Identifier: Apache-2.0 */
/* Values in rows of structs, as JSON and as numbers. */
#include "field.h"

#include <math.h>
#include <string.h>

#include "output.h"
#include "topology/topology.h"

double field_to_number(enum field_type type, const void *at)
{
	uint64_t count;
	double real;
	int number;

	switch (type) {
	case FIELD_INT:
	case FIELD_FLAG:
		memcpy(&number, at, sizeof(number));
		return number < 0 ? (double)NAN : number;
	case FIELD_COUNT:
		memcpy(&count, at, sizeof(count));
		return count == WH_UNKNOWN ? (double)NAN : (double)count;
	case FIELD_REAL:
		memcpy(&real, at, sizeof(real));
		return real;
	default:
		return NAN;
	}
}

json_t *field_to_json(enum field_type type, const void *at)
{
	double number = field_to_number(type, at);
	uint64_t count;

	if (type == FIELD_TEXT)
		return output_text(at);
	if (!isfinite(number))
		return json_null();
	switch (type) {
	case FIELD_FLAG:
		return json_boolean(number != 0);
	case FIELD_COUNT:
		memcpy(&count, at, sizeof(count)); /* a double would round it */
		return json_integer((json_int_t)count);
	case FIELD_REAL:
		return json_real(number);
	default:
		return json_integer((json_int_t)number);
	}
}

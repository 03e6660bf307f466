/* A placement: which replica is on which host, its cost, and how a move changes that cost.
 *
 * Plain C without Python's headers, called through ctypes: one library serves every Python, and the interpreter's lock is
 * free while it runs. problem.py describes the arrays of `Problem`. "Nowhere" is host -1.
 */
#ifndef NETAWARE_STATE_H
#define NETAWARE_STATE_H

#include <stdint.h>

enum { ROUTE_ANY = 0, ROUTE_ZONE = 1, ROUTE_NODE = 2 };
enum { RULE_SPREAD = 0, RULE_ANTI_AFFINITY = 1, RULE_AFFINITY = 2, RULE_PREFERENCE = 3 };
enum { COUNTED = 1, OWNER = 2 }; /* flags of a role: the rule counts the replica, the replica carries the rule */

/* The order of the fields is the order in native.py. Every array is C-contiguous and outlives the call. */
typedef struct {
  int64_t hosts, resources, zones, classes, workloads, replicas, edges, tables, rules;
  const int64_t *free;          /* [host][resource] */
  const double *inverse_capacity; /* [host][resource] 1 / capacity, 0 without capacity */
  const int32_t *zone_of;       /* [host] */
  const uint8_t *has_zone_label; /* [zone] whether its nodes carry the zone label */
  const double *host_price;     /* [host] cost of each replica on it */
  const int32_t *workload_of;   /* [class] */
  const int32_t *row_of;        /* [class] row of `allowed` */
  const uint8_t *allowed;       /* [row][host] */
  const int64_t *request_start; /* [class + 1] into request_resource, request_amount */
  const int32_t *request_resource;
  const int64_t *request_amount;
  const int32_t *class_of;      /* [replica] */
  const int64_t *total;         /* [workload] replicas of it, fixed ones included */
  const uint8_t *must_span_zones; /* [workload] whether it must not be wholly in one zone */
  const double *host_penalty, *zone_penalty; /* [workload] cost of two of its replicas on one host, in one zone, over 2 */
  const int64_t *fixed_start;   /* [workload + 1] into fixed_host */
  const int32_t *fixed_host;    /* a host per fixed replica */
  const int32_t *caller, *callee, *routing, *table; /* [edge] */
  const double *weight;         /* [edge] traffic of all callers together */
  const double *latency;        /* [table][zone][zone] between different hosts */
  const double *host_latency;   /* [table] within a host */
  const uint8_t *violates_limit; /* [table][zone][zone] whether the path exceeds the table's limit */
  const int32_t *rule_kind, *rule_max_skew; /* [rule] */
  const uint8_t *rule_lacks_domains; /* [rule] fewer domains than minDomains: the minimum is 0 */
  const double *rule_price;     /* [rule] of preferences */
  const int32_t *domain_of;     /* [rule][host] or -1 */
  const int64_t *domain_start;  /* [rule + 1] into the next three */
  const int64_t *bound_counted, *bound_owners; /* fixed pods that the rule counts, and that carry it */
  const uint8_t *eligible;      /* whether a domain's count enters the minimum */
  const int64_t *role_start;    /* [class + 1] into role_rule, role */
  const int32_t *role_rule;
  const uint8_t *role;
  double limit_price, one_zone_price, overload_price, balance_price, crowding_price;
} Problem;

typedef struct { int32_t *item, length, capacity; } ReplicaList;

typedef struct {
  const Problem *p;
  int32_t *host_of;             /* [replica] */
  int32_t *list_index;          /* [replica] in replicas_on its host */
  ReplicaList *replicas_on;     /* [host] movable replicas */
  int64_t *free;                /* [host][resource] */
  int64_t *request;             /* [class][resource] */
  int32_t *on_host;             /* [workload][host] replicas, fixed ones included */
  int64_t *in_zone;             /* [workload][zone] the same */
  int64_t *n_unzoned;           /* [workload] its replicas on nodes without a zone label; kube-proxy ignores zone hints if any */
  int64_t *same_host;           /* [edge][zone] sum of same_host_calls over the zone's hosts */
  double *to_all;               /* [edge][zone] cost of one caller there to all replicas of the callee */
  double *zone_cost;            /* [edge][zone] cost_from_zone of the current placement */
  double *mean_detour;          /* [table][zone] mean extra latency of a call that leaves the zone */
  double *pair_weight;          /* [edge] weight of one pair of caller and replica */
  int64_t *adjacent_start;      /* [workload + 1] into adjacent */
  int64_t *adjacent;            /* edges at a workload: edge * 2, + 1 if the workload is the callee */
  int64_t *member_start;        /* [workload + 1] into member */
  int32_t *member;              /* movable replicas by workload */
  int64_t *n_counted, *n_owners; /* [rule's domain] replicas that the rule counts, and that carry it */
  int64_t *min_counted;         /* [rule] least n_counted of the eligible domains */
  int32_t *n_on_host;           /* [host] replicas on it, fixed ones included */
  int64_t n_placed;             /* movable replicas that have a host */
  uint64_t random;
} State;

/* Everything is unplaced at first. */
State *state_new(const Problem *p, uint64_t seed);
void state_free(State *s);

/* Changes of the cost, if a replica moves: of network and zones, of all else, and both. */
double state_network_delta(const State *s, int32_t class, int32_t from, int32_t to);
double state_other_delta(const State *s, int32_t class, int32_t from, int32_t to);
double state_delta(const State *s, int32_t replica, int32_t to);
double state_cost(const State *s);
void state_move(State *s, int32_t replica, int32_t to);
int state_may_leave(const State *s, int32_t class, int32_t from);
int state_allows(const State *s, int32_t class, int32_t from, int32_t host);

/* xorshift64* */
static inline uint64_t random_bits(State *s) {
  s->random ^= s->random << 13;
  s->random ^= s->random >> 7;
  s->random ^= s->random << 17;
  return s->random * 0x2545F4914F6CDD1DULL;
}
static inline int64_t random_below(State *s, int64_t n) { return (int64_t)(((random_bits(s) >> 32) * (uint64_t)n) >> 32); }
static inline double random_unit(State *s) { return (double)(random_bits(s) >> 11) * 0x1.0p-53; }
static inline int is_allowed(const Problem *p, int32_t class, int32_t host) {
  return p->allowed[(int64_t)p->row_of[class] * p->hosts + host];
}
/* Whether these free resources of a host suffice. */
static inline int fits(const Problem *p, int32_t class, const int64_t *host_free) {
  for (int64_t a = p->request_start[class]; a < p->request_start[class + 1]; a++)
    if (host_free[p->request_resource[a]] < p->request_amount[a]) return 0;
  return 1;
}
static inline int state_fits(const State *s, int32_t class, int32_t host) {
  return fits(s->p, class, s->free + (int64_t)host * s->p->resources);
}
static inline int has_rules(const Problem *p, int32_t class) { return p->role_start[class] < p->role_start[class + 1]; }

#endif

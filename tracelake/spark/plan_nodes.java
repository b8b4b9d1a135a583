import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import scala.Product;
import scala.collection.Iterator;

/** Writes a plan as JSON: each node once, however often others refer to it. `plan_nodes.py` has the fields. */
public class PlanNodes implements java.util.function.Function {
    public Object apply(Object plan) {
        try {
            return new ObjectMapper().writeValueAsString(new Reader().read((TreeNode) plan));
        } catch (java.io.IOException wrong) {
            throw new java.io.UncheckedIOException(wrong);
        }
    }

    private static class Reader {
        private final IdentityHashMap numbers = new IdentityHashMap();
        private final List nodes = new ArrayList();

        List read(TreeNode plan) {
            List described = new ArrayList();
            number(plan);
            for (int at = 0; at < nodes.size(); at++) {
                described.add(describe((TreeNode) nodes.get(at)));
            }
            return described;
        }

        private Integer number(TreeNode node) {
            Integer known = (Integer) numbers.get(node);
            if (known == null) {
                known = Integer.valueOf(nodes.size());
                numbers.put(node, known);
                nodes.add(node);
            }
            return known;
        }

        private Map describe(TreeNode node) {
            Map values = new HashMap();
            List children = new ArrayList();
            List fields = new ArrayList();
            collect(node.children(), children, new IdentityHashMap());
            collectAll(((Product) node).productIterator(), fields, new IdentityHashMap());
            values.put("class", node.getClass().getName());
            values.put("children", children);
            values.put("fields", fields);
            addValues(node, values);
            return values;
        }

        /** Includes nodes inside options, sequences, maps and tuples. */
        private void collect(Object value, List found, IdentityHashMap seen) {
            if (value instanceof TreeNode) {
                found.add(number((TreeNode) value));
            } else if (value instanceof scala.collection.Iterable || value instanceof Product) {
                if (seen.put(value, value) == null) {
                    collectAll(
                        value instanceof scala.collection.Iterable
                            ? ((scala.collection.Iterable) value).iterator()
                            : ((Product) value).productIterator(),
                        found,
                        seen
                    );
                }
            }
        }

        private void collectAll(Iterator values, List found, IdentityHashMap seen) {
            while (values.hasNext()) {
                collect(values.next(), found, seen);
            }
        }

        private void addValues(TreeNode node, Map values) {
            if (node instanceof View) {
                TableIdentifier named = ((View) node).desc().identifier();
                values.put("temporary", Boolean.valueOf(((View) node).isTempView()));
                values.put("table", named.database().isEmpty() ? named.table() : null);
            } else if (node instanceof Cast) {
                values.put("type", ((Cast) node).dataType().typeName());
            } else if (node instanceof Literal) {
                values.put("value", String.valueOf(((Literal) node).value()));
            } else if (node instanceof UnresolvedRelation) {
                values.put("words", Integer.valueOf(((UnresolvedRelation) node).multipartIdentifier().size()));
            }
        }
    }
}

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

/** A plan as JSON: each node once, however often others refer to it. `plan_nodes.py` says what of it is told. */
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
            List told = new ArrayList();
            number(plan);
            for (int at = 0; at < nodes.size(); at++) {
                told.add(describe((TreeNode) nodes.get(at)));
            }
            return told;
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
            Map told = new HashMap();
            List children = new ArrayList();
            List fields = new ArrayList();
            collect(node.children(), children, new IdentityHashMap());
            collectAll(((Product) node).productIterator(), fields, new IdentityHashMap());
            told.put("class", node.getClass().getName());
            told.put("children", children);
            told.put("fields", fields);
            addValues(node, told);
            return told;
        }

        /** Nodes inside of options, sequences, maps and tuples too. */
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

        private void addValues(TreeNode node, Map told) {
            if (node instanceof View) {
                TableIdentifier named = ((View) node).desc().identifier();
                told.put("temporary", Boolean.valueOf(((View) node).isTempView()));
                told.put("table", named.database().isEmpty() ? named.table() : null);
            } else if (node instanceof Cast) {
                told.put("type", ((Cast) node).dataType().typeName());
            } else if (node instanceof Literal) {
                told.put("value", String.valueOf(((Literal) node).value()));
            } else if (node instanceof UnresolvedRelation) {
                told.put("words", Integer.valueOf(((UnresolvedRelation) node).multipartIdentifier().size()));
            }
        }
    }
}

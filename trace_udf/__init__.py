"""The SDK for functions of Trace: pure Python from 3.9 on, without dependencies, the same on AWS Lambda.

from trace_udf import udf

@udf
def handler(task):
rows = task.query("SELECT id, amount FROM orders WHERE amount > 100")
task.publish(rows, dataset="large_orders", key="id")
"""

from trace_udf.errors import Canceled, Ended, Final, LeaseLost, Refused
from trace_udf.handler import udf
from trace_udf.task import Alert, Task

__all__ = ["Alert", "Canceled", "Ended", "Final", "LeaseLost", "Refused", "Task", "udf"]
